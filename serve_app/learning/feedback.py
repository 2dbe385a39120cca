"""Feedback: what measured latencies teach about the computed capacity, and about the headroom."""

import math
from dataclasses import replace

from serve_app.learning.state import Minute, PolicyState
from serve_app.policy.capacity_model import Sizing, slow_share
from serve_app.policy.inputs import Observation
from serve_app.settings.knobs import Knobs

_REPORTED_S = 30.0
"""The time that reported latencies cover."""
_FEWEST = 20.0
"""Observations that a percentile needs to be meaningful."""
_INTERFERENCE_MEMORY_S = 3600.0
"""Interference is a property of the traffic, and changes with it over the day."""
_OVERLOADED = 0.05
"""Expected share of late tokens beyond which nothing is learned from them: a backlog is late by itself."""
_MINUTE_S = 60.0
"""As long as the minutes by which attainment is judged."""
_STEP = 0.35
"""In units of the square root of the load: with nine replicas, one for a missed minute. Of 0.25, 0.35 and 0.5
it is the least with which no replayed window attains less than with the headroom of before."""
_MOST = 2.0
"""With nine replicas six more. A miss that six more would not have prevented, as in a burst on a cold fleet,
teaches nothing."""


def ttft_missed(seen: Observation, knobs: Knobs) -> float:
    """Return the share of requests that waited too long in an engine's queue; see `Inputs.ttft_missed`."""
    # The median prompt, because a few long prompts, which nothing helps, must not hide the others.
    prefill_s = seen.ttft_prefill.at(50)
    return seen.ttft_queue.share_above(max(knobs.ttft_target_s - prefill_s, prefill_s / 2))


def remember_ready(state: PolicyState, ready: int, now: float) -> PolicyState:
    """Return the state with the mean of ready replicas over the time that reported latencies cover."""
    if not ready or state.ready_mean <= 0:
        return replace(state, ready_mean=float(ready))
    keep = math.exp(-state.elapsed_s(now) / _REPORTED_S)
    mean = state.ready_mean * keep + ready * (1.0 - keep)
    # It comes to rest, and not to an ever smaller difference.
    return replace(state, ready_mean=float(ready) if math.isclose(mean, ready) else mean)


def learn_interference(
    state: PolicyState, seen: Observation, itl_missed: float, sizing: Sizing, rps: float, now: float
) -> PolicyState:
    """Return the state with the late tokens since the last decision added, measured and expected at `rps`.

    Their ratio covers what the model does not know: the spread of prompt lengths, how evenly the ingress
    spreads requests, clumps shorter than a bucket. An overloaded replica is left out: its tokens are late
    because of earlier requests.
    """
    elapsed = state.elapsed_s(now)
    if seen.itl.count < _FEWEST or state.ready_mean <= 0 or elapsed <= 0:
        return state
    limit_s = sizing.feasibility.itl_limit_s
    expected = slow_share(sizing.step, sizing.mix, limit_s, rps / state.ready_mean)
    # A ratio below 1 makes fleets for which more is expected: they must go on learning, or it would stay.
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
    """Return the state with its headroom moved at the end of each minute, by whether that met its targets.

    A missed minute adds a step times `slo_attainment`; any other takes the rest of a step away, 99 times as
    slowly for 99 %. So the headroom rests where that share of the minutes meets its targets: adaptive
    conformal inference (I. Gibbs, E. Candes, NeurIPS 2021), whose error is a missed minute. `missed` are the
    shares of requests and of tokens that missed their targets, `ready` are the replicas that serve, `load` is
    how many the demand of the last minute would fill, and `horizon_s` how long one takes to start.
    """
    elapsed = state.elapsed_s(now)
    requests = seen.ttft_queue.count * elapsed / _REPORTED_S
    tokens = seen.itl.count * elapsed / _REPORTED_S
    before = state.minute
    # A replica that was asked for later than one start before the end serves in the next minute only.
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
    if minute.requests >= _FEWEST and load <= minute.ready + _MOST * math.sqrt(minute.ready):
        permitted = 1.0 - knobs.ttft_percentile / 100.0
        late = minute.late_requests > permitted * minute.requests
        late = late or minute.late_tokens > permitted * minute.tokens
        # A start of three minutes makes three missed minutes of one error.
        step = _STEP * min(1.0, _MINUTE_S / max(horizon_s, 1.0))
        headroom += step * (knobs.slo_attainment - (0.0 if late else 1.0))
    return replace(state, learned_headroom=min(max(headroom, 0.0), _MOST), minute=Minute(now, ready))
