"""The policy: from the reports about one model to how many replicas it should have, and why.

Pure: no Ray, no clock, no I/O. `decide` may be called at any interval; it is meant for about a second.
"""

from dataclasses import dataclass, replace

from serve_app.policy.capacity_model import KV_FILL
from serve_app.policy.explanation import Clamp, Explanation, Term, are, counted
from serve_app.policy.inputs import Inputs, gather
from serve_app.policy.reasons import (
    assumption_notes,
    counterfactual,
    explain_signals,
    feasibility_notes,
    main_reason,
)
from serve_app.policy.snapshot import Snapshot
from serve_app.policy.state import PolicyState
from serve_app.policy.terms import baseline_terms, load_terms
from serve_app.settings.knobs import Knobs

IDLE = Term("idle", 0, "no request is waiting, running or arriving")
_LONGEST_GAP_S = 600.0
"""Between two decisions; far more than a restart of Ray's controller takes."""
_COLD_BURST_S = 1.0
"""A burst reaches the ingress over some hundred milliseconds, or a second from a slow client. Its size is
known only after that; after `_QUIET_BURST_S` if no request has arrived since the last decision."""
_QUIET_BURST_S = 0.2


@dataclass(frozen=True, slots=True)
class Decision:
    """How many replicas there should be, and why."""

    target: int
    """Replicas to ask for now."""
    wanted: int
    """Replicas that the terms need, within the bounds: the target if there were no delays and no `advise`."""
    state: PolicyState
    """The memory to pass to the next call."""
    explanation: Explanation


def decide(snapshot: Snapshot, knobs: Knobs, state: PolicyState, now: float) -> Decision:
    """Decide for one model at `now`, Unix time in seconds and the only clock.

    `state` is the memory from the last decision; `PolicyState()` at first or after a loss.
    """
    if state.last_at is not None and not 0 <= now - state.last_at <= _LONGEST_GAP_S:
        # Nobody has seen what happened meanwhile: no delay has passed. What was learned is still true.
        state = replace(state, since=None, idle_since=None, moved_at=None, woken_at=None, queue=(), peaks=())
    inputs = gather(snapshot, knobs, state, now)
    load, baseline = _needed_by_load(inputs), baseline_terms(inputs)
    inputs = replace(inputs, state=_remember_peak(inputs, max(term.replicas for term in load)))

    strongest = max([IDLE, *load, *baseline], key=lambda term: term.replicas)
    needed, clamps = strongest.replicas, []
    wanted = min(max(needed, knobs.min_replicas), knobs.max_replicas)
    if wanted != needed:
        bound = "min_replicas" if wanted > needed else "max_replicas"
        clamps.append(Clamp("bounds", f"{bound} = {wanted}, and {are(needed, 'replica')} needed"))
    target, limits = _limit_change(inputs, wanted)
    clamps += limits
    if knobs.mode == "advise" and target != (kept := inputs.current):
        clamps.append(Clamp("mode", f"in mode advise the target stays {kept}; it would be {target}"))
        target = kept
    state = inputs.state
    if target < snapshot.target:
        state = replace(state, lowered=(now, state.correction, max(state.demand.recent(now))))
    if snapshot.capacity.pending:
        clamps.append(Clamp("capacity", _pending(snapshot)))
    binding, reason = main_reason(strongest, clamps, wanted, target)
    scheduled = next((term.replicas for term in baseline if term.name == "schedule"), 0)
    explanation = Explanation(
        terms=(*load, *baseline),
        binding=binding,
        clamps=tuple(clamps),
        reason=reason,
        counterfactual=counterfactual(inputs, wanted, target, scheduled),
        notes=(*feasibility_notes(inputs), *assumption_notes(inputs), *inputs.seen.notes),
        signals=explain_signals(inputs),
        ages_s=inputs.seen.ages_s,
    )
    return Decision(target, wanted, replace(state, last_at=now), explanation)


def _needed_by_load(inputs: Inputs) -> list[Term]:
    """Return the load's terms; they look back, so they need nothing where no request is left to serve."""
    terms = load_terms(inputs)
    if not inputs.snapshot.target and not inputs.seen.queued_requests:
        why = "the model is at zero and no request is waiting"
    elif inputs.state.idle_since is not None and inputs.idle_s >= inputs.knobs.downscale_to_zero_delay_s:
        why = f"the model has been idle for {inputs.idle_s:.0f} s"
    else:
        return terms
    return [Term(term.name, 0, why) for term in terms]


def _remember_peak(inputs: Inputs, peak: int) -> PolicyState:
    """Keep what the load has needed within the hold, as a falling sequence of maxima."""
    start = inputs.now - inputs.hold_s
    kept = [(at, n) for at, n in inputs.state.peaks if start < at <= inputs.now and n > peak]
    return replace(inputs.state, peaks=(*kept, (inputs.now, peak)))


def _limit_change(inputs: Inputs, wanted: int) -> tuple[int, list[Clamp]]:
    """Return the target: `wanted` at once if that is more, and with every caution if it is less."""
    current = inputs.current
    if wanted > current:
        if not current and _burst_arrives(inputs) and wanted < inputs.knobs.max_replicas:
            # The rest of the burst is still on its way; asking twice would cost a second cold start.
            effect = f"a burst is still arriving; the policy waits up to {_COLD_BURST_S:g} s to see its size"
            return 0, [Clamp("delay", effect)]
        return wanted, []
    return _limit_decrease(inputs, wanted) if wanted < current else (current, [])


def _limit_decrease(inputs: Inputs, wanted: int) -> tuple[int, list[Clamp]]:
    knobs, current = inputs.knobs, inputs.current
    if inputs.silent:
        engines = inputs.seen.unknown_engines
        does = "does" if engines == 1 else "do"
        silent = f"{counted(engines, 'engine replica')} {does}" if engines else "ingress replicas do"
        return current, [Clamp("signals", f"{silent} not report, so no replica is removed")]
    several_s = inputs.hold_s if current > 1 else 0.0
    if wanted == 0 and inputs.idle_s >= max(knobs.downscale_to_zero_delay_s, several_s):
        return 0, []
    if (left := inputs.unobserved_s) > 0:
        effect = f"the load has been observed for {inputs.observed_s:.0f} s only"
        return current, [Clamp("delay", f"{effect}; replicas can be removed in {left:.0f} s")]
    needed_at, most = inputs.state.peaks[0]
    floor = max(wanted, min(most, current), 1 if wanted == 0 else 0)
    clamps = []
    if floor > wanted:
        ago = inputs.now - needed_at
        left = max(0.0, inputs.hold_s - ago)
        needed = f"the load needed {counted(most, 'replica')} {ago:.0f} s ago"
        clamps.append(Clamp("delay", f"{needed}; replicas can be removed in {left:.0f} s"))
    target = min(floor, current)
    while target < current and not _can_hold(target, inputs):
        target += 1
    if target > floor:
        effect = f"{floor} could not hold the running requests within the targets; {target} can"
        clamps.append(Clamp("hold", effect))
    return target, clamps


def _burst_arrives(inputs: Inputs) -> bool:
    """Return whether a burst on a cold model has only begun, or still grows within its first second."""
    longest_s = _COLD_BURST_S if inputs.seen.arrivals > 0 else _QUIET_BURST_S
    return inputs.seen.held_requests > 0 and inputs.seen.oldest_held_s < longest_s


def _can_hold(replicas: int, inputs: Inputs) -> bool:
    """Return whether `replicas` can run the present batch within the ITL target and their KV caches."""
    seen = inputs.seen
    if seen.running_requests <= 0:
        return True
    if seen.kv_cache_tokens > 0 and seen.running_tokens > KV_FILL * seen.kv_cache_tokens * replicas:
        return False
    share = 1.0 / replicas
    step_s = inputs.sizing.step.decode_s(seen.running_requests * share, seen.running_tokens * share)
    return step_s <= inputs.knobs.itl_target_s or not inputs.measured.itl_feasible


def _pending(snapshot: Snapshot) -> str:
    capacity = snapshot.capacity
    have = "has" if capacity.pending == 1 else "have"
    why = f": {capacity.reason}" if capacity.reason else ""
    since = f"been pending for {capacity.pending_s:.0f} s"
    return f"{capacity.pending} of {snapshot.target} replicas {have} {since}{why}"
