"""The policy: from what is seen of one model to how many replicas it should have, and why.

Pure: no Ray, no clock, no I/O. `decide` may be called at any interval; a second apart is meant.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from serve_app.policy.decision import Clamp, Explanation, Term
from serve_app.policy.feedback import correct, learn_interference, measure, remember_ready
from serve_app.policy.observe import Observation, observe
from serve_app.policy.priors import begin, unmeasured
from serve_app.policy.reasons import counterfactual, explain_signals, feasibility_notes
from serve_app.policy.situation import Situation
from serve_app.policy.sizing import size
from serve_app.policy.state import PolicyState
from serve_app.policy.terms import COLD_BURST_S, load_terms, standing_terms
from serve_app.settings.knobs import Knobs
from serve_app.wire.signals import Snapshot

NOTHING = Term("idle", 0, "nothing waits, runs or arrives")
_LONGEST_GAP_S = 600.0
"""Between two decisions; far more than a restart of Ray's controller takes."""


@dataclass(frozen=True, slots=True)
class Decision:
    """How many replicas there should be, what the policy wanted before it was held back, and why."""

    target: int
    """What to ask for now."""
    wanted: int
    """What the terms ask for, within the bounds: what the target would be without delays and mode."""
    state: PolicyState
    """To be handed to the next call."""
    explanation: Explanation


def decide(snapshot: Snapshot, knobs: Knobs, state: PolicyState, now: float) -> Decision:
    """Decide for one model.

    Args:
        snapshot: The replicas there are and what they and the ingress report.
        knobs: The operator's.
        state: From the last decision; `PolicyState()` at first or after a loss.
        now: Unix time, seconds. The only clock.
    """
    if state.last_at is not None and not 0 <= now - state.last_at <= _LONGEST_GAP_S:
        # What happened meanwhile nobody saw: no delay has passed. What was learned is still true.
        state = replace(state, since=None, idle_since=None, moved_at=None, woken_at=None, queue=(), peaks=())
    snapshot, state = begin(snapshot, knobs, state)
    seen, state = observe(snapshot, state, now, knobs.forecast_window_s)
    state = _remember_wake(_remember_queue(state, seen, knobs, snapshot.ready, now), snapshot, now)
    step, mix = state.service.step_time(), state.sums.mix()
    measured = measure(seen.engines, knobs, step.decode_s(1.0, mix.context_tokens))
    state = _remember_fleet(state, snapshot, now)
    felt_rps = state.demand.felt_rps(now)
    state = remember_ready(state, snapshot.ready, now)
    state = learn_interference(state, measured, knobs, step, mix, felt_rps, now)
    state = correct(state, measured, knobs, snapshot.ready, snapshot.target, now)
    at = Situation(snapshot, knobs, state, seen, measured, size(state, knobs, step, mix), now, felt_rps)

    load, standing = load_terms(at), standing_terms(at)
    # Rates and forecasts look back. They do not wake a model for requests that have left already, and
    # who has been idle for long enough is asked for nothing any more.
    if not snapshot.target and not seen.queued_requests:
        load = [Term(term.name, 0, "at zero, and nobody waits") for term in load]
    elif state.idle_since is not None and at.idle_s >= knobs.downscale_to_zero_delay_s:
        load = [Term(term.name, 0, f"idle for {at.idle_s:.0f} s") for term in load]
    peak = max((term.replicas for term in load), default=0)
    state = _remember_peak(state, peak, knobs, now)
    at = replace(at, state=state)

    strongest = max([*load, *standing], key=lambda term: term.replicas, default=NOTHING)
    if strongest.replicas == 0:
        strongest = NOTHING
    wanted, clamps = _bounded(strongest.replicas, knobs)
    target, held = _held_back(at, wanted)
    clamps += held
    if knobs.mode == "advise":
        kept = min(max(snapshot.target, knobs.min_replicas), knobs.max_replicas)
        if target != kept:
            clamps.append(Clamp("mode", f"advise: {target} recorded, {kept} kept"))
        target = kept
    if target < snapshot.target:
        state = replace(state, lowered=(now, state.correction, state.demand.recent_rps(now)))
    if snapshot.capacity.pending:
        clamps.append(Clamp("capacity", _pending(snapshot)))
    binding, reason = _why(strongest, clamps, wanted, target, knobs)
    scheduled = next((term.replicas for term in standing if term.name == "schedule"), 0)
    explanation = Explanation(
        terms=(*load, *standing),
        binding=binding,
        clamps=tuple(clamps),
        reason=reason,
        counterfactual=counterfactual(at, wanted, target, scheduled),
        notes=(*feasibility_notes(at), *unmeasured(snapshot, knobs, state), *seen.notes),
        signals=explain_signals(at),
        ages_s=seen.ages_s,
    )
    return Decision(target, wanted, replace(state, last_at=now), explanation)


def _remember_queue(
    state: PolicyState, seen: Observation, knobs: Knobs, ready: int, now: float
) -> PolicyState:
    """The queue of the last `upscale_delay_s`, and the entry just before it, which says it was watched.

    Only of times with a replica: what was held for a cold start has not been seen to stand before one.
    Else the first replica of a burst would find the whole of it standing, and ask for as many again.
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
        # Not watched for the whole delay yet: whatever waits has not been seen standing.
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
    """What the load has asked for within `downscale_delay_s`, as a falling sequence of maxima."""
    start = now - knobs.downscale_delay_s
    kept = [(at, n) for at, n in state.peaks if start < at <= now and n > peak]
    return replace(state, peaks=(*kept, (now, peak)))


def _bounded(replicas: int, knobs: Knobs) -> tuple[int, list[Clamp]]:
    if replicas < knobs.min_replicas:
        return knobs.min_replicas, [
            Clamp("bounds", f"min_replicas = {knobs.min_replicas}, {replicas} asked for")
        ]
    if replicas > knobs.max_replicas:
        return knobs.max_replicas, [
            Clamp("bounds", f"max_replicas = {knobs.max_replicas}, {replicas} asked for")
        ]
    return replicas, []


def _held_back(at: Situation, wanted: int) -> tuple[int, list[Clamp]]:
    """The target: `wanted` at once if that is more, and with every caution if it is less."""
    snapshot, knobs, state, seen, now = at.snapshot, at.knobs, at.state, at.seen, at.now
    current = min(max(snapshot.target, knobs.min_replicas), knobs.max_replicas)
    if wanted > current:
        if not current and _arriving(seen) and wanted < knobs.max_replicas:
            # The rest of the burst is still on its way; asking twice would cost a second cold start.
            return 0, [Clamp("delay", f"a burst is arriving: up to {COLD_BURST_S:g} s to see its size")]
        return wanted, []
    if wanted == current:
        return current, []
    if seen.unknown_engines or not seen.ingress_known:
        silent = f"{seen.unknown_engines} engine replicas" if seen.unknown_engines else "ingress replicas"
        return current, [
            Clamp("signals", f"{silent} are silent; not known to be idle, nothing is taken away")
        ]
    idle_through = wanted == 0 and at.idle_s >= max(
        knobs.downscale_to_zero_delay_s, knobs.downscale_delay_s if current > 1 else 0.0
    )
    if idle_through:
        return 0, []
    if at.watched_s < at.first_down_s:
        left = at.first_down_s - at.watched_s
        return current, [
            Clamp("delay", f"the load has been watched for {at.watched_s:.0f} s; down in {left:.0f} s")
        ]
    floor = max(wanted, min(state.peaks[0][1], current), 1 if wanted == 0 else 0)
    clamps = []
    if floor > wanted:
        called_at, most = state.peaks[0]
        ago = now - called_at
        left = max(0.0, knobs.downscale_delay_s - ago)
        clamps.append(Clamp("delay", f"{most} were called for {ago:.0f} s ago; down in {left:.0f} s"))
    target = min(floor, current)
    while target < current and not _holds(target, at):
        target += 1
    if target > floor:
        clamps.append(Clamp("hold", f"{floor} would not hold what is running; {target} would"))
    return target, clamps


def _arriving(seen: Observation) -> bool:
    """Whether a burst on a cold model has only begun, or still grows within its first second."""
    if seen.held_requests <= 0:
        return False
    return seen.oldest_held_s < (COLD_BURST_S if seen.arrivals > 0 else COLD_BURST_S / 2)


def _holds(replicas: int, at: Situation) -> bool:
    """Whether so many would carry the running batch within the inter-token target and their KV caches."""
    seen = at.seen
    if seen.running_requests <= 0:
        return True
    if replicas <= 0:
        return False
    if seen.kv_cache_tokens > 0 and seen.running_tokens > 0.9 * seen.kv_cache_tokens * replicas:
        return False
    share = 1.0 / replicas
    step_s = at.sizing.step.decode_s(seen.running_requests * share, seen.running_tokens * share)
    return step_s <= at.knobs.itl_target_s or not at.measured.itl_feasible


def _pending(snapshot: Snapshot) -> str:
    capacity = snapshot.capacity
    why = f": {capacity.reason}" if capacity.reason else ""
    return f"pending capacity: {capacity.pending} of {snapshot.target} for {capacity.pending_s:.0f} s{why}"


def _why(strongest: Term, clamps: list[Clamp], wanted: int, target: int, knobs: Knobs) -> tuple[str, str]:
    """The name of what set the target, and a sentence."""
    for clamp in clamps:
        if clamp.name in ("mode", "signals", "delay", "hold") and target != wanted:
            return clamp.name, f"{clamp.effect} ({strongest.name}: {strongest.why})"
    if wanted == knobs.min_replicas and strongest.replicas < wanted:
        return "min_replicas", f"min_replicas = {wanted} ({strongest.name}: {strongest.why})"
    if strongest.replicas > wanted:
        return (
            "max_replicas",
            f"max_replicas = {wanted} of {strongest.replicas} ({strongest.name}: {strongest.why})",
        )
    return strongest.name, f"{strongest.name}: {strongest.why}"
