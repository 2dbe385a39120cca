"""One turn of the policy: observe the reports about one model, learn from the reports, and decide.

Pure: no Ray, no clock, no I/O. Call `next_decision` about once a second; any interval works.
"""

from dataclasses import replace

from serve_app.learning.demand import rise_s
from serve_app.learning.feedback import learn_headroom, learn_interference, remember_ready, ttft_missed
from serve_app.learning.forecast import forecast
from serve_app.learning.observe import observe
from serve_app.learning.state import PolicyState, Waiting
from serve_app.learning.step_time_fit import StepTimeFit
from serve_app.policy.capacity_model import Sizing, StepTime, itl_rps
from serve_app.policy.decide import Decision, decide
from serve_app.policy.inputs import Inputs, Observation
from serve_app.policy.snapshot import Snapshot
from serve_app.settings.knobs import Knobs

_LONGEST_GAP_S = 600.0
"""After a longer gap between decisions, delays begin anew. A restart of Ray's controller takes far less."""


def next_decision(
    snapshot: Snapshot, knobs: Knobs, state: PolicyState, now: float
) -> tuple[Decision, PolicyState]:
    """Return the decision for one model at `now` (Unix time in seconds), and the new memory.

    `state` is the memory from the last decision, or `PolicyState()` at first and after a loss.
    """
    if state.last_at is not None and not 0 <= now - state.last_at <= _LONGEST_GAP_S:
        # Nothing was observed in the gap, so delays begin anew. The learned figures are still valid.
        state = replace(state, since=None, idle_since=None, woken_at=None, queue=(), recent_needs=())
    inputs, state = learn(snapshot, knobs, state, now)
    decision = decide(inputs)
    return decision, replace(state, recent_needs=decision.recent_needs, last_at=now)


def learn(snapshot: Snapshot, knobs: Knobs, state: PolicyState, now: float) -> tuple[Inputs, PolicyState]:
    """Return the inputs of a decision at `now`, and the memory updated by the reports."""
    snapshot, state = apply_starting_values(snapshot, knobs, state)
    seen, state = observe(snapshot, state, now, knobs.forecast_window_s)
    starting = snapshot.target and not snapshot.ready
    state = replace(
        state,
        queue=_queue(state, seen, knobs, now) if snapshot.ready else (),
        woken_at=(now if state.woken_at is None else state.woken_at) if starting else None,
    )
    step, mix = state.service.step_time(), state.sums.mix()
    sizing = Sizing(step, mix, knobs, itl_rps=0.0)
    missed = ttft_missed(seen, knobs), seen.itl.share_above(sizing.feasibility.itl_limit_s)
    state = remember_ready(state, snapshot.ready, now)
    state = learn_interference(state, seen, missed[1], sizing, state.demand.weighted_rps(now), now)
    given = knobs.starting_values
    kv_cache_tokens = state.kv_cache_tokens or (given.kv_cache_tokens if given is not None else None) or 0
    sizing = replace(sizing, itl_rps=itl_rps(step, mix, knobs, kv_cache_tokens, state.interference))
    load = max(state.demand.recent(now)) / sizing.rps(snapshot.ready)
    state = learn_headroom(state, seen, missed, knobs, snapshot.ready, load, snapshot.horizon_s, now)
    sizing = replace(sizing, headroom=knobs.headroom + state.learned_headroom)
    return _inputs(snapshot, knobs, state, seen, missed, sizing, now), state


def _inputs(
    snapshot: Snapshot,
    knobs: Knobs,
    state: PolicyState,
    seen: Observation,
    missed: tuple[float, float],
    sizing: Sizing,
    now: float,
) -> Inputs:
    demand, horizon_s = state.demand, snapshot.horizon_s
    arrivals = demand.arrivals(now)
    # Without a ready replica all of the queue counts. Otherwise the shortest recent queue counts, as in
    # CoDel: a burst that the present replicas clear needs no other replica.
    queue = state.queue if snapshot.ready else (Waiting(now, seen.queued_requests, seen.queued_tokens),)
    return Inputs(
        snapshot=snapshot,
        knobs=knobs,
        now=now,
        seen=seen,
        ttft_missed=missed[0],
        itl_missed=missed[1],
        sizing=sizing,
        steps_learned=state.service.steps,
        interference=state.interference,
        arrivals=arrivals,
        forecast=forecast(
            demand.histogram, arrivals.weighted_rps, knobs.forecast_quantile, horizon_s, arrivals.window_s
        )
        if knobs.forecast
        else None,
        standing_requests=min(entry.requests for entry in queue),
        standing_tokens=min(entry.tokens for entry in queue),
        waking_s=_since(state.woken_at, now) or 0.0,
        idle_s=_since(state.idle_since, now),
        observed_s=_since(state.since, now) or 0.0,
        rise_s=rise_s(horizon_s) if knobs.forecast else 0.0,
        recent_needs=state.recent_needs,
    )


def _since(begun: float | None, now: float) -> float | None:
    return None if begun is None else now - begun


def apply_starting_values(
    snapshot: Snapshot, knobs: Knobs, state: PolicyState
) -> tuple[Snapshot, PolicyState]:
    """Return both with the knob's starting values in place of missing measurements.

    After its first step a fit keeps its old prior, even if the knob changes: the prior cannot be separated
    from the steps, and steps say more than the knob.
    """
    given = knobs.starting_values
    if given is not None and given.typical_start_s is not None:
        snapshot = replace(snapshot, assumed_start_s=given.typical_start_s)
    wanted = StepTime(*given.coefficients) if given is not None else None
    if wanted != state.started_with and not state.service.steps:
        service = StepTimeFit.starting_with(wanted) if wanted is not None else StepTimeFit()
        state = replace(state, service=service, started_with=wanted)
    return snapshot, state


def _queue(state: PolicyState, seen: Observation, knobs: Knobs, now: float) -> tuple[Waiting, ...]:
    """Return the queue of the last `upscale_delay_s`, and the entry before, which shows that all was
    observed.

    Kept only while a replica is ready. Otherwise the first replica of a burst would find the whole burst
    standing, and the queue would ask for as many replicas again.
    """
    entries = [entry for entry in state.queue if entry.at <= now]
    start = now - knobs.upscale_delay_s
    older = [entry for entry in entries if entry.at <= start]
    entries = older[-1:] + [entry for entry in entries if entry.at > start]
    if not knobs.upscale_delay_s:
        entries = []
    elif not older and (not entries or entries[0].requests > 0):
        # The queue has not been observed for the whole delay yet, so nothing counts as standing.
        entries.insert(0, Waiting(start, 0.0, 0.0))
    return (*entries, Waiting(now, seen.queued_requests, seen.queued_tokens))
