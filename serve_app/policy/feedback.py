"""Feedback: the latencies that replicas measured, and what they tell about the computed capacity."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from serve_app.policy.capacity_model import Mix, StepTime, feasibility, slow_share
from serve_app.policy.state import PolicyState
from serve_app.settings.knobs import ITL_PERCENTILES, PERCENTILES, Knobs, Percentile
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


@dataclass(frozen=True, slots=True)
class Latency:
    """One part of latency over the last 30 s, by replica, in seconds."""

    percents: tuple[int, ...]
    rows: tuple[tuple[float, ...], ...]
    """For each replica that observed any: the number of observations, then the percentiles."""
    count: float
    """Observations of all replicas."""

    def at(self, percentile: Percentile) -> float:
        """Return the mean of the replicas' percentiles, weighted by their observations; 0 without any."""
        column = 1 + self.percents.index(percentile)
        return sum([row[0] * row[column] for row in self.rows]) / self.count if self.rows else 0.0

    def share_above(self, limit_s: float) -> float:
        """Return the share of observations above `limit_s`, interpolated for each replica by itself.

        Mean percentiles would not do: where latencies are of two kinds, the means belong to neither.
        """
        percents, above = (0, *self.percents), 0.0
        for row in self.rows:
            if row[-1] > limit_s:
                index = bisect_right(row, limit_s, 1) - 1
                # Linear between two percentiles; the lowest is taken to start at 0 s.
                below, below_s = percents[index], row[index] if index else 0.0
                width_s = row[index + 1] - below_s
                part = (limit_s - below_s) / width_s if width_s > 0 else 0.0
                above += row[0] * (100.0 - below - part * (percents[index + 1] - below))
        # A report whose percentiles are out of order must not come to more than all, or less than none.
        return min(max(above / (100.0 * self.count), 0.0), 1.0) if self.rows else 0.0


def latency(engines: Sequence[EngineSignals], part: str) -> Latency:
    """Return `ttft_queue`, `ttft_prefill` or `itl` as `engines` report it."""
    read, percents = _READERS[part]
    rows = tuple([row for row in map(read, engines) if row[0] > 0])
    return Latency(percents, rows, sum([row[0] for row in rows]))


@dataclass(frozen=True, slots=True)
class Measured:
    """Latencies of the last 30 s against their targets."""

    ttft_queue: Latency
    ttft_prefill: Latency
    itl: Latency
    ttft_missed: float
    """Share of requests that waited too long in an engine's queue: beyond what prefill leaves of the target,
    or beyond half a prefill if that is more."""
    itl_missed: float
    """Share of inter-token latencies above `Feasibility.itl_limit_s`."""
    ttft_feasible: bool
    """Whether prefill leaves anything of the target at its median."""


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
    return replace(state, ready_mean=state.ready_mean * keep + ready * (1.0 - keep))


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
