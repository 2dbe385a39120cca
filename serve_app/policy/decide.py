"""The policy: from the reports about one model to how many replicas it should have, and why.

Pure: no Ray, no clock, no I/O. `decide` may be called at any interval; it is meant for about a second.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from serve_app.policy.clamps import current_target, limit_change, within_bounds
from serve_app.policy.explanation import Clamp, Explanation, Term
from serve_app.policy.feedback import correct, learn_interference, measure, remember_ready
from serve_app.policy.inputs import Inputs
from serve_app.policy.observe import Observation, observe
from serve_app.policy.priors import apply_starting_values, assumption_notes
from serve_app.policy.reasons import counterfactual, explain_signals, feasibility_notes
from serve_app.policy.sizing import size
from serve_app.policy.snapshot import Snapshot
from serve_app.policy.state import PolicyState
from serve_app.policy.terms import baseline_terms, load_terms
from serve_app.settings.knobs import Knobs

IDLE = Term("idle", 0, "no request is waiting, running or arriving")
_LONGEST_GAP_S = 600.0
"""Between two decisions; far more than a restart of Ray's controller takes."""


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
    """Decide for one model.

    Args:
        snapshot: The replicas, and what they and the ingress report.
        knobs: The operator's settings.
        state: The memory from the last decision; `PolicyState()` at first or after a loss.
        now: Unix time in seconds, the only clock.
    """
    if state.last_at is not None and not 0 <= now - state.last_at <= _LONGEST_GAP_S:
        # Nobody has seen what happened meanwhile: no delay has passed. What was learned is still true.
        state = replace(state, since=None, idle_since=None, moved_at=None, woken_at=None, queue=(), peaks=())
    snapshot, state = apply_starting_values(snapshot, knobs, state)
    inputs = _inputs(snapshot, knobs, state, now)

    load, baseline = _needed_by_load(inputs), baseline_terms(inputs)
    peak = max((term.replicas for term in load), default=0)
    inputs = replace(inputs, state=_remember_peak(inputs.state, peak, knobs, now))

    strongest = max([*load, *baseline], key=lambda term: term.replicas, default=IDLE)
    if strongest.replicas == 0:
        strongest = IDLE
    wanted, clamps = within_bounds(strongest.replicas, knobs)
    target, limits = limit_change(inputs, wanted)
    clamps += limits
    if knobs.mode == "advise" and target != (kept := current_target(inputs)):
        clamps.append(Clamp("mode", f"in mode advise the target stays {kept}; it would be {target}"))
        target = kept
    state = inputs.state
    if target < snapshot.target:
        state = replace(state, lowered=(now, state.correction, state.demand.recent_rps(now)))
    if snapshot.capacity.pending:
        clamps.append(Clamp("capacity", _pending(snapshot)))
    binding, reason = _why(strongest, clamps, wanted, target)
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


def _inputs(snapshot: Snapshot, knobs: Knobs, state: PolicyState, now: float) -> Inputs:
    """Sum up the reports, learn from them, and return what the decision is made from."""
    seen, state = observe(snapshot, state, now, knobs.forecast_window_s)
    state = _remember_queue(state, seen, knobs, snapshot.ready, now)
    state = _remember_wake(state, snapshot, now)
    step, mix = state.service.step_time(), state.sums.mix()
    measured = measure(seen.engines, knobs, step.decode_s(1.0, mix.context_tokens))
    state = _remember_fleet(state, snapshot, now)
    felt_rps = state.demand.felt_rps(now)
    state = remember_ready(state, snapshot.ready, now)
    state = learn_interference(state, measured, knobs, step, mix, felt_rps, now)
    state = correct(state, measured, knobs, snapshot.ready, snapshot.target, now)
    return Inputs(snapshot, knobs, state, seen, measured, size(state, knobs, step, mix), now, felt_rps)


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


def _remember_queue(
    state: PolicyState, seen: Observation, knobs: Knobs, ready: int, now: float
) -> PolicyState:
    """Keep the queue of the last `upscale_delay_s`, and the entry before it, which shows it was observed.

    Only while a replica is ready: otherwise the first replica of a burst would find the whole burst
    standing, and the queue would ask for as many replicas again.
    """
    if not ready:
        return replace(state, queue=())
    entries = [entry for entry in state.queue if entry[0] <= now]
    start = now - knobs.upscale_delay_s
    older = [entry for entry in entries if entry[0] <= start]
    entries = older[-1:] + [entry for entry in entries if entry[0] > start]
    if not knobs.upscale_delay_s:
        entries = []
    elif not older and (not entries or entries[0][1] > 0):
        # The queue has not been observed for the whole delay yet, so nothing counts as standing.
        entries.insert(0, (start, 0.0, 0.0))
    return replace(state, queue=(*entries, (now, seen.queued_requests, seen.queued_tokens)))


def _remember_wake(state: PolicyState, snapshot: Snapshot, now: float) -> PolicyState:
    if snapshot.ready or not snapshot.target:
        return replace(state, woken_at=None)
    return state if state.woken_at is not None else replace(state, woken_at=now)


def _remember_fleet(state: PolicyState, snapshot: Snapshot, now: float) -> PolicyState:
    fleet = (snapshot.ready, snapshot.target)
    if fleet == state.fleet and state.moved_at is not None and state.moved_at <= now:
        return state
    return replace(state, fleet=fleet, moved_at=now)


def _remember_peak(state: PolicyState, peak: int, knobs: Knobs, now: float) -> PolicyState:
    """Keep what the load has needed within `downscale_delay_s`, as a falling sequence of maxima."""
    start = now - knobs.downscale_delay_s
    kept = [(at, n) for at, n in state.peaks if start < at <= now and n > peak]
    return replace(state, peaks=(*kept, (now, peak)))


def _pending(snapshot: Snapshot) -> str:
    capacity = snapshot.capacity
    replicas = (
        f"{capacity.pending} of {snapshot.target} replicas {'has' if capacity.pending == 1 else 'have'}"
    )
    why = f": {capacity.reason}" if capacity.reason else ""
    return f"{replicas} been pending for {capacity.pending_s:.0f} s{why}"


def _why(strongest: Term, clamps: list[Clamp], wanted: int, target: int) -> tuple[str, str]:
    """Return the name of what set the target, and a sentence."""
    why = f"{strongest.name}: {strongest.why}"
    for clamp in clamps:
        if clamp.name in ("mode", "signals", "delay", "hold") and target != wanted:
            return clamp.name, f"{clamp.effect} ({why})"
    for clamp in clamps:
        if clamp.name == "bounds":
            return clamp.effect.partition(" ")[0], f"{clamp.effect} ({why})"
    return strongest.name, why
