"""The clamps: what keeps the target from what the terms need."""

from dataclasses import dataclass, replace

from serve_app.policy.capacity_model import KV_FILL
from serve_app.policy.explanation import Clamp, amount, are, counted
from serve_app.policy.inputs import Inputs, Need
from serve_app.policy.terms import Needs

_COLD_BURST_S = 1.0
"""A burst reaches the ingress over some hundred milliseconds, or a second from a slow client. Its size is
known only after that; before, if its last request came `_QUIET_BURST_S` ago."""
_QUIET_BURST_S = 0.2


@dataclass(frozen=True, slots=True)
class Limited:
    """The target: the third step of a decision, made of what is needed."""

    needs: Needs
    """With the load's need of now among the peaks of its inputs."""
    target: int
    clamps: tuple[Clamp, ...]


def limit(needs: Needs) -> Limited:
    """Return the target: what is wanted at once if that is more, and with every caution if it is less."""
    inputs, clamps = needs.inputs, []
    inputs = replace(inputs, peaks=_peaks(needs))
    needed, wanted = needs.strongest.replicas, needs.wanted
    if wanted != needed:
        bound = "min_replicas asks for" if wanted > needed else "max_replicas allows"
        effect = f"{bound} {counted(wanted, 'replica')}, but {are(needed, 'replica')} needed."
        clamps.append(Clamp("bounds", effect))
    target, limits = _limit_change(inputs, wanted)
    clamps += limits
    if inputs.knobs.mode == "advise" and target != (kept := inputs.current):
        effect = f"In mode advise the target stays at {counted(kept, 'replica')}."
        clamps.append(Clamp("mode", f"{effect} In mode act it would be {counted(target, 'replica')}."))
        target = kept
    return Limited(replace(needs, inputs=inputs), target, tuple(clamps))


def _peaks(needs: Needs) -> tuple[Need, ...]:
    """Return what the load has needed within the hold, as a falling sequence of maxima."""
    inputs, now = needs.inputs, Need(needs.inputs.now, needs.kept)
    start = now.at - inputs.hold_s
    kept = [need for need in inputs.peaks if start < need.at <= now.at and need.replicas > now.replicas]
    return (*kept, now)


def _limit_change(inputs: Inputs, wanted: int) -> tuple[int, list[Clamp]]:
    current = inputs.current
    if wanted > current:
        if not current and _burst_arrives(inputs) and wanted < inputs.knobs.max_replicas:
            # The rest of the burst is still on its way; asking twice would cost a second cold start.
            effect = "A burst is still arriving. "
            effect += f"The policy waits up to {_COLD_BURST_S:g} s to see the size of the burst."
            return 0, [Clamp("delay", effect)]
        return wanted, []
    return _limit_decrease(inputs, wanted) if wanted < current else (current, [])


def _limit_decrease(inputs: Inputs, wanted: int) -> tuple[int, list[Clamp]]:
    knobs, current = inputs.knobs, inputs.current
    if inputs.silent:
        silent = "Most engine" if inputs.seen.ingress_known else "Ingress"
        return current, [Clamp("signals", f"{silent} replicas do not report, so no replica is removed.")]
    several_s = inputs.hold_s if current > 1 else 0.0
    if wanted == 0 and (inputs.idle_s or 0.0) >= max(knobs.downscale_to_zero_delay_s, several_s):
        return 0, []
    if (left := inputs.unobserved_s) > 0:
        effect = f"The policy has observed the load for {inputs.observed_s:.0f} s only."
        return current, [Clamp("delay", f"{effect} Replicas can be removed in {left:.0f} s.")]
    peak = inputs.peaks[0]
    floor = max(wanted, min(peak.replicas, current), 1 if wanted == 0 else 0)
    clamps = []
    if floor > wanted:
        ago = inputs.now - peak.at
        left = max(0.0, inputs.hold_s - ago)
        needed = f"The need was {counted(peak.replicas, 'replica')} {ago:.0f} s ago."
        window = f"The scale-down window is {amount(inputs.hold_s)} s"
        clamps.append(Clamp("delay", f"{needed} {window}, so replicas can be removed in {left:.0f} s."))
    target = min(floor, current)
    while target < current and not _can_hold(target, inputs):
        target += 1
    if target > floor:
        effect = f"{counted(floor, 'replica')} cannot run the present batch within the targets."
        clamps.append(Clamp("batch_limit", f"{effect} {counted(target, 'replica')} can."))
    return target, clamps


def _burst_arrives(inputs: Inputs) -> bool:
    """Return whether a burst on a cold model has only begun, or still grows within its first second."""
    seen = inputs.seen
    # By the age of the last request, not by whether one came since the last decision: a report that is late
    # on a busy node is read by several decisions, and would look like quiet to all but the first.
    grows = seen.oldest_held_s < _COLD_BURST_S and seen.newest_held_s < _QUIET_BURST_S
    return seen.held_requests > 0 and grows


def _can_hold(replicas: int, inputs: Inputs) -> bool:
    """Return whether `replicas` can run the present batch within the ITL target and their KV caches."""
    seen = inputs.seen
    if seen.running_requests <= 0:
        return True
    if seen.kv_cache_tokens > 0 and seen.running_tokens > KV_FILL * seen.kv_cache_tokens * replicas:
        return False
    share = 1.0 / replicas
    step_s = inputs.sizing.step.decode_s(seen.running_requests * share, seen.running_tokens * share)
    return step_s <= inputs.alone.itl_limit_s
