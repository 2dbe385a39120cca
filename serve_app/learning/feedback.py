"""Feedback: the latencies that replicas measured, and what they tell about the computed capacity."""

import math
from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

from serve_app.learning.state import PolicyState
from serve_app.policy.capacity_model import Mix, StepTime, feasibility, slow_share
from serve_app.policy.measured import Latency, Measured
from serve_app.settings.knobs import ITL_PERCENTILES, PERCENTILES, Knobs
from serve_app.wire.signals import EngineSignals

REPORTED_S = 30.0
"""The time that reported latencies cover."""
FEWEST = 20.0
"""Observations that a percentile needs to be meaningful."""
_INTERFERENCE_MEMORY_S = 3600.0
"""Interference is a property of the traffic, and changes with it over the day."""

_OVERLOADED = 0.05
"""Expected share of late tokens beyond which nothing is learned from them: a backlog is late by itself."""

_READERS = {
    part: (attrgetter(count, *(f"{part}_p{p}_s" for p in percentiles)), percentiles)
    for part, count, percentiles in (
        ("ttft_queue", "ttft_count", PERCENTILES),
        ("ttft_prefill", "ttft_count", PERCENTILES),
        ("itl", "itl_count", ITL_PERCENTILES),
    )
}


def latency(engines: Sequence[EngineSignals], part: str) -> Latency:
    """Return `ttft_queue`, `ttft_prefill` or `itl` as `engines` report it."""
    read, percents = _READERS[part]
    rows = tuple([row for row in map(read, engines) if row[0] > 0])
    return Latency(percents, rows, sum([row[0] for row in rows]))


def measure(engines: Sequence[EngineSignals], knobs: Knobs, itl_limit_s: float) -> Measured:
    """Compare reported latencies with the targets, and with `itl_limit_s` where that is above the target."""
    queue, prefill, itl = (latency(engines, part) for part in _READERS)
    # The median prompt, because a few long prompts, which nothing helps, must not hide the others.
    prefill_s = prefill.at(50)
    left_s = knobs.ttft_target_s - prefill_s
    missed = queue.share_above(max(left_s, prefill_s / 2))
    return Measured(queue, prefill, itl, missed, itl.share_above(itl_limit_s), left_s > 0)


def remember_ready(state: PolicyState, ready: int, now: float) -> PolicyState:
    """Return the state with the mean of ready replicas over the time that reported latencies cover."""
    if not ready or state.ready_mean <= 0:
        return replace(state, ready_mean=float(ready))
    keep = math.exp(-state.elapsed_s(now) / REPORTED_S)
    mean = state.ready_mean * keep + ready * (1.0 - keep)
    # It comes to rest, and not to an ever smaller difference.
    return replace(state, ready_mean=float(ready) if math.isclose(mean, ready) else mean)


def learn_interference(
    state: PolicyState,
    measured: Measured,
    knobs: Knobs,
    step: StepTime,
    mix: Mix,
    felt_rps: float,
    now: float,
) -> PolicyState:
    """Return the state with the late tokens since the last decision added, measured and expected.

    Their ratio covers what the model does not know: the spread of prompt lengths, how evenly the ingress
    spreads requests, clumps shorter than a bucket. An overloaded replica is left out: its tokens are late
    because of earlier requests.
    """
    elapsed = state.elapsed_s(now)
    if measured.itl.count < FEWEST or state.ready_mean <= 0 or elapsed <= 0:
        return state
    limit_s = feasibility(step, mix, knobs).itl_limit_s
    expected = slow_share(step, mix, limit_s, felt_rps / state.ready_mean)
    # A ratio below 1 makes fleets for which more is expected: they must go on learning, or it would stay.
    if expected * min(state.interference, 1.0) > _OVERLOADED:
        return state
    tokens = measured.itl.count * elapsed / REPORTED_S
    fade = math.exp(-elapsed / _INTERFERENCE_MEMORY_S)
    return replace(
        state,
        late_tokens=state.late_tokens * fade + tokens * measured.itl_missed,
        late_tokens_expected=state.late_tokens_expected * fade + tokens * expected,
    )
