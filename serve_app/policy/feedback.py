"""Feedback from measured latencies to the computed capacity and to the headroom."""

import math
from dataclasses import replace

from serve_app.policy.capacity_model import Sizing, slow_share
from serve_app.policy.reports import Observation
from serve_app.policy.state import Minute, PolicyState
from serve_app.settings.knobs import Knobs

_REPORTED_S = 30.0
"""The time that reported latencies cover."""
_FEWEST = 20.0
"""The least number of observations for a meaningful percentile."""
_INTERFERENCE_MEMORY_S = 3600.0
"""Interference depends on the traffic, which changes over the day."""
_OVERLOADED = 0.05
"""Above this expected share of late tokens nothing is learned, because a backlog makes tokens late."""
_MINUTE_S = 60.0
"""The length of the intervals in which attainment is measured."""
_HEADROOM_STEP = 0.35
"""In units of the square root of the load: with nine replicas, about one replica per missed minute. Of 0.25,
0.35 and 0.5, it is the least step with which no replayed window attained less than with the former
headroom."""
_MOST_HEADROOM = 2.0
"""In the same units: six more replicas for nine. Nothing is learned from a miss that more headroom than this
would not have prevented, such as a burst on a cold fleet."""


def ttft_missed(seen: Observation, knobs: Knobs) -> float:
    """Return the share of requests that waited too long in an engine's queue; see `Inputs.ttft_missed`."""
    # The median prefill, because a few long prompts must not loosen the limit for the other prompts.
    prefill_s = seen.ttft_prefill.at(50)
    return seen.ttft_queue.share_above(max(knobs.ttft_target_s - prefill_s, prefill_s / 2))


def remember_ready(state: PolicyState, ready: int, now: float) -> PolicyState:
    """Return the state with the mean of ready replicas over the time that reported latencies cover."""
    if not ready or state.ready_mean <= 0:
        return replace(state, ready_mean=float(ready))
    keep = math.exp(-state.elapsed_s(now) / _REPORTED_S)
    mean = state.ready_mean * keep + ready * (1.0 - keep)
    # The mean ends exactly at `ready`, so that the state stops changing.
    return replace(state, ready_mean=float(ready) if math.isclose(mean, ready) else mean)


def learn_interference(
    state: PolicyState, seen: Observation, itl_missed: float, sizing: Sizing, rps: float, now: float
) -> PolicyState:
    """Return the state with the measured and the expected late tokens since the last decision.

    Their ratio corrects the model for the spread of prompt lengths, for uneven routing, and for clumps
    shorter than a bucket. An overloaded fleet is left out, because earlier requests make its tokens late.
    """
    elapsed = state.elapsed_s(now)
    if seen.itl.count < _FEWEST or state.ready_mean <= 0 or elapsed <= 0:
        return state
    limit_s = sizing.feasibility.itl_limit_s
    expected = slow_share(sizing.step, sizing.mix, limit_s, rps / state.ready_mean)
    # A ratio below 1 allows higher loads, for which more late tokens are expected. Such fleets must go on
    # learning, or the ratio would never rise again.
    if expected * min(state.interference, 1.0) > _OVERLOADED:
        return state
    tokens = seen.itl.count * elapsed / _REPORTED_S
    fade = math.exp(-elapsed / _INTERFERENCE_MEMORY_S)
    return replace(
        state,
        late_tokens=state.late_tokens * fade + tokens * itl_missed,
        late_tokens_expected=state.late_tokens_expected * fade + tokens * expected,
    )


def learn_headroom(
    state: PolicyState,
    seen: Observation,
    missed: tuple[float, float],
    knobs: Knobs,
    ready: int,
    load: float,
    horizon_s: float,
    now: float,
) -> PolicyState:
    """Return the state with its headroom adjusted at the end of each minute.

    A minute that missed its targets adds `slo_attainment` of a step. Any other minute removes the rest of a
    step: for 99 %, 99 times less. So in equilibrium the share `slo_attainment` of the minutes meets its
    targets. This is adaptive conformal inference (I. Gibbs, E. Candes, NeurIPS 2021) with missed minutes as
    errors.

    Args:
        state: The memory.
        seen: The observation.
        missed: The shares of requests and of tokens that missed their targets.
        knobs: The knobs.
        ready: The replicas that serve.
        load: The replicas that the demand of the last minute fills.
        horizon_s: Seconds that a replica takes to start.
        now: Unix time in seconds.
    """
    elapsed = state.elapsed_s(now)
    requests = seen.ttft_queue.count * elapsed / _REPORTED_S
    tokens = seen.itl.count * elapsed / _REPORTED_S
    before = state.minute
    # A replica requested less than one start before the minute's end serves only in the next minute.
    in_time = now - before.began <= _MINUTE_S - horizon_s
    minute = Minute(
        before.began,
        ready if in_time else before.ready,
        before.requests + requests,
        before.late_requests + requests * missed[0],
        before.tokens + tokens,
        before.late_tokens + tokens * missed[1],
    )
    if 0 <= now - minute.began < _MINUTE_S:
        return replace(state, minute=minute)
    headroom = state.learned_headroom
    if minute.requests >= _FEWEST and load <= minute.ready + _MOST_HEADROOM * math.sqrt(minute.ready):
        permitted = 1.0 - knobs.ttft_percentile / 100.0
        late = minute.late_requests > permitted * minute.requests
        late = late or minute.late_tokens > permitted * minute.tokens
        # With a start of three minutes, one error makes three missed minutes.
        step = _HEADROOM_STEP * min(1.0, _MINUTE_S / max(horizon_s, 1.0))
        headroom += step * (knobs.slo_attainment - (0.0 if late else 1.0))
    return replace(state, learned_headroom=min(max(headroom, 0.0), _MOST_HEADROOM), minute=Minute(now, ready))
