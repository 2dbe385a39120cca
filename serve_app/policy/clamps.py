"""The clamps of the policy: each keeps the target from what the terms need, and says why."""

from __future__ import annotations

from serve_app.policy.explanation import Clamp, are, counted
from serve_app.policy.inputs import Inputs
from serve_app.policy.observe import Observation
from serve_app.policy.terms import KV_FILL
from serve_app.settings.knobs import Knobs

# A burst reaches the ingress over some hundred milliseconds, or a second from a slow client. Its size is
# known only after that; after half of it if no request has arrived since the last decision.
_COLD_BURST_S = 1.0


def within_bounds(replicas: int, knobs: Knobs) -> tuple[int, list[Clamp]]:
    """Return `replicas` between `min_replicas` and `max_replicas`."""
    bounded = min(max(replicas, knobs.min_replicas), knobs.max_replicas)
    if bounded == replicas:
        return replicas, []
    name = "min_replicas" if bounded > replicas else "max_replicas"
    return bounded, [Clamp("bounds", f"{name} = {bounded}, and {are(replicas, 'replica')} needed")]


def current_target(inputs: Inputs) -> int:
    """Return the target in force, within the bounds."""
    knobs = inputs.knobs
    return min(max(inputs.snapshot.target, knobs.min_replicas), knobs.max_replicas)


def limit_change(inputs: Inputs, wanted: int) -> tuple[int, list[Clamp]]:
    """Return the target: `wanted` at once if that is more, and with every caution if it is less."""
    current = current_target(inputs)
    if wanted > current:
        if not current and _burst_arrives(inputs.seen) and wanted < inputs.knobs.max_replicas:
            # The rest of the burst is still on its way; asking twice would cost a second cold start.
            effect = f"a burst is still arriving; the policy waits up to {_COLD_BURST_S:g} s to see its size"
            return 0, [Clamp("delay", effect)]
        return wanted, []
    return _limit_decrease(inputs, wanted, current) if wanted < current else (current, [])


def _limit_decrease(inputs: Inputs, wanted: int, current: int) -> tuple[int, list[Clamp]]:
    knobs, state = inputs.knobs, inputs.state
    if inputs.silent:
        return current, [Clamp("signals", f"{_silent(inputs.seen)}, so no replica is removed")]
    if wanted == 0 and inputs.idle_s >= max(
        knobs.downscale_to_zero_delay_s, knobs.downscale_delay_s if current > 1 else 0.0
    ):
        return 0, []
    left = inputs.min_observed_s - inputs.observed_s
    if left > 0:
        effect = f"the load has been observed for {inputs.observed_s:.0f} s only"
        return current, [Clamp("delay", f"{effect}; replicas can be removed in {left:.0f} s")]
    needed_at, most = state.peaks[0]
    floor = max(wanted, min(most, current), 1 if wanted == 0 else 0)
    clamps = []
    if floor > wanted:
        ago = inputs.now - needed_at
        left = max(0.0, knobs.downscale_delay_s - ago)
        needed = f"the load needed {counted(most, 'replica')} {ago:.0f} s ago"
        clamps.append(Clamp("delay", f"{needed}; replicas can be removed in {left:.0f} s"))
    target = min(floor, current)
    while target < current and not _can_hold(target, inputs):
        target += 1
    if target > floor:
        effect = f"{floor} could not hold the running requests within the targets; {target} can"
        clamps.append(Clamp("hold", effect))
    return target, clamps


def _silent(seen: Observation) -> str:
    if not seen.unknown_engines:
        return "ingress replicas do not report"
    engines = counted(seen.unknown_engines, "engine replica")
    return f"{engines} {'does' if seen.unknown_engines == 1 else 'do'} not report"


def _burst_arrives(seen: Observation) -> bool:
    """Return whether a burst on a cold model has only begun, or still grows within its first second."""
    if seen.held_requests <= 0:
        return False
    return seen.oldest_held_s < (_COLD_BURST_S if seen.arrivals > 0 else _COLD_BURST_S / 2)


def _can_hold(replicas: int, inputs: Inputs) -> bool:
    """Return whether `replicas` can run the present batch within the ITL target and their KV caches."""
    seen = inputs.seen
    if seen.running_requests <= 0:
        return True
    if replicas <= 0:
        return False
    if seen.kv_cache_tokens > 0 and seen.running_tokens > KV_FILL * seen.kv_cache_tokens * replicas:
        return False
    share = 1.0 / replicas
    step_s = inputs.sizing.step.decode_s(seen.running_requests * share, seen.running_tokens * share)
    return step_s <= inputs.knobs.itl_target_s or not inputs.measured.itl_feasible
