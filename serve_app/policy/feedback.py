"""Feedback: measured latencies correct the capacity that the model computes."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from serve_app.policy.capacity_model import Mix, StepTime, slow_share
from serve_app.policy.state import Minute, PolicyState
from serve_app.settings.knobs import ITL_PERCENTILES, PERCENTILES, Knobs, Percentile
from serve_app.wire.signals import EngineSignals

_WINDOW_S = 30.0
"""The time that reported latencies cover: for that long after a change they describe the fleet as it was."""
_FEWEST = 20.0
"""Observations that a percentile needs to be meaningful."""
_LOWEST = 0.25
_FALL_PER_S = 0.01
"""At twice the permitted share of misses capacity halves in 70 s; at four times, in 23 s."""
_RISE_PER_S = 1.0 / 1800.0
"""Trust comes back in half an hour: a fleet that has just been enough must not shrink on a lull."""
_REGRET_S = 600.0
"""Misses this soon after a scale-down, at no higher load, are attributed to it."""
_LATE_REGRET = 1.5
"""Factor on the permitted share of late tokens: over half a minute it scatters more than that of waits."""
_REGRET = 0.9
"""The limit of the correction after such a scale-down, as a share of the correction that led to it."""
_PROBE_S = 21_600.0
"""How long the limit is in force: trying the same fleet again costs a cold start and 30 s of misses."""
_INTERFERENCE_MEMORY_S = 3600.0
"""Interference is a property of the traffic, and changes with it over the day."""
_MINUTE_S = 60.0
"""As long as the minutes by which attainment is judged."""
_HEADROOM_STEP = 0.5
"""In units of the square root of the load: with nine replicas, one and a half of them for a missed minute."""
_MOST_HEADROOM = 2.0
"""A bound, for minutes that are missed whatever the replicas: nine of them become at most fifteen."""

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
    """Share of requests whose wait in an engine's queue alone exceeded what prefill leaves of the target."""
    itl_missed: float
    ttft_feasible: bool
    """Whether prefill leaves anything of the target at its percentile."""
    itl_feasible: bool


def measure(engines: Sequence[EngineSignals], knobs: Knobs, lowest_itl_s: float) -> Measured:
    """Compare reported latencies with the targets; `lowest_itl_s` is the ITL of a single sequence."""
    queue, prefill, itl = (latency(engines, part) for part in _READERS)
    # The median prompt, because a few long prompts, which nothing helps, must not hide the others.
    budget = knobs.ttft_target_s - prefill.at(50)
    feasible, itl_feasible = budget > 0, lowest_itl_s < knobs.itl_target_s
    missed = queue.share_above(budget) if feasible else 0.0
    itl_missed = itl.share_above(knobs.itl_target_s) if itl_feasible else 0.0
    return Measured(queue, prefill, itl, missed, itl_missed, feasible, itl_feasible)


def correct(
    state: PolicyState, measured: Measured, knobs: Knobs, ready: int, target: int, now: float
) -> PolicyState:
    """Return the state with its capacity correction moved by the latencies since the last decision.

    The correction falls while more times to first token miss the target than permitted. It rises if the
    fleet would miss less than half of the permitted share with one replica fewer, assuming that misses grow
    in proportion to the load of a replica. Close to saturation they grow faster: a scale-down that led to
    misses is not tried again for hours, or under a constant load a replica would go and come back every five
    minutes.
    """
    elapsed = _elapsed(state, now)
    settled = state.moved_at is not None and now - state.moved_at >= _WINDOW_S and ready == target > 0
    if not settled or elapsed <= 0 or measured.ttft_queue.count < _FEWEST:
        return state
    permitted = 1.0 - knobs.ttft_percentile / 100.0
    # Late tokens change the interference, not this correction; but the interference forgets them within the
    # hour, and the same fleet would be tried again. One limit is enough, because they are learned besides.
    if measured.itl_missed > _LATE_REGRET * permitted and not _limited(state, now):
        state = _regret(state, now)
    over = measured.ttft_missed / permitted
    value = state.correction
    if over > 1.1:
        value *= math.exp(-_FALL_PER_S * elapsed * min(over - 1.0, 3.0))
        state = _regret(state, now)
    elif over * ready / max(ready - 1, 1) < 0.5 and ready > 1:
        value *= math.exp(_RISE_PER_S * elapsed)
    highest = state.correction_limit if _limited(state, now) else 1.0
    return replace(state, correction=max(min(value, highest), _LOWEST))


def remember_ready(state: PolicyState, ready: int, now: float) -> PolicyState:
    """Return the state with the mean of ready replicas over the time that reported latencies cover."""
    if not ready or state.ready_mean <= 0:
        return replace(state, ready_mean=float(ready))
    keep = math.exp(-_elapsed(state, now) / _WINDOW_S)
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
    elapsed = _elapsed(state, now)
    known = measured.itl_feasible and measured.itl.count >= _FEWEST and state.ready_mean > 0
    if not known or elapsed <= 0:
        return state
    expected = slow_share(step, mix, knobs.itl_target_s, felt_rps / state.ready_mean)
    if expected > 1.0 - knobs.ttft_percentile / 100.0:
        return state
    tokens = measured.itl.count * elapsed / _WINDOW_S
    fade = math.exp(-elapsed / _INTERFERENCE_MEMORY_S)
    return replace(
        state,
        late_tokens=state.late_tokens * fade + tokens * measured.itl_missed,
        late_tokens_expected=state.late_tokens_expected * fade + tokens * expected,
    )


def learn_headroom(
    state: PolicyState,
    measured: Measured,
    knobs: Knobs,
    fleet: tuple[int, int],
    horizon_s: float,
    now: float,
) -> PolicyState:
    """Return the state with its headroom moved at the end of each minute, by whether that met its targets.

    A missed minute adds a step times `slo_attainment`; any other takes the rest of a step away, 99 times as
    slowly for 99 %. So the headroom rests where that share of the minutes meets its targets: adaptive
    conformal inference (I. Gibbs, E. Candes, NeurIPS 2021), whose error is a missed minute. `fleet` is
    (ready, target): while replicas start, and until reports describe the fleet that they make, tokens are
    late whatever the headroom.
    """
    minute, elapsed = state.minute, _elapsed(state, now)
    settled = state.moved_at is not None and now - state.moved_at >= min(_WINDOW_S, horizon_s)
    if settled and fleet[0] == fleet[1] > 0:
        requests = measured.ttft_queue.count * elapsed / _WINDOW_S
        tokens = measured.itl.count * elapsed / _WINDOW_S
        minute = Minute(
            minute.began,
            minute.requests + requests,
            minute.late_requests + requests * measured.ttft_missed,
            minute.tokens + tokens,
            minute.late_tokens + tokens * measured.itl_missed,
        )
    if 0 <= now - minute.began < _MINUTE_S:
        return replace(state, minute=minute)
    headroom = state.learned_headroom
    if minute.requests >= _FEWEST:
        permitted = 1.0 - knobs.ttft_percentile / 100.0
        requests, tokens = permitted * minute.requests, permitted * minute.tokens
        missed = minute.late_requests > requests or minute.late_tokens > tokens
        if missed:
            headroom += _HEADROOM_STEP * knobs.slo_attainment
        elif not _limited(state, now):  # with less headroom, the limit on the correction would be none
            headroom -= _HEADROOM_STEP * (1.0 - knobs.slo_attainment)
    return replace(state, learned_headroom=min(max(headroom, 0.0), _MOST_HEADROOM), minute=Minute(now))


def _elapsed(state: PolicyState, now: float) -> float:
    """Return the seconds since the last decision, at most ten: longer pauses were not measured."""
    return 0.0 if state.last_at is None else min(max(now - state.last_at, 0.0), 10.0)


def _limited(state: PolicyState, now: float) -> bool:
    return 0 < state.limited_until - now <= _PROBE_S


def _regret(state: PolicyState, now: float) -> PolicyState:
    """Return the state with its correction limited, if the last scale-down explains the misses."""
    if state.lowered is None:
        return state
    at, correction, rate = state.lowered
    if not 0 <= now - at <= _REGRET_S or max(state.demand.recent(now)) > 1.1 * rate:
        return state
    limit = _REGRET * correction
    if _limited(state, now):
        limit = min(limit, state.correction_limit)
    return replace(state, lowered=None, correction_limit=limit, limited_until=now + _PROBE_S)
