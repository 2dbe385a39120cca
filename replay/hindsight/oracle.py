"""The oracle: the cost of a schedule that is made knowing the whole trace. A bound, not a policy.

It knows every arrival, and starts replicas one cold start before they are needed. It is a heuristic: a
cheaper schedule may exist, so its cost is above the true optimum.

1. From the trace and the true step time follow the replicas that each slot of ten seconds needs.
2. Each one-minute window has a load: the factor by which its replicas serve more than the formula says. Some
   ten replays bring the loads to the point where each window just attains its targets.
3. A replica is kept through a gap if that is cheaper than a drain and a start.
4. Windows with the highest cost per request are given up, as long as `GOAL` of the requests are in attained
   windows.

The result is the cheapest replay that reaches `GOAL`, or the one that came nearest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from replay.defaults import GOAL, ORACLE
from replay.fleet.layout import WINDOW_S
from replay.hindsight.need import Need, read_need
from replay.hindsight.timetable import Schedule, Timetable, fill_gaps, seconds
from replay.result import Result
from replay.scenario import Scenario
from replay.simulation import Sampled
from traces.trace import Floats, Ints

_SLOT_S = 10.0
_SHORT_SLOT_S = 2.5
_SHORT_COLD_START_S = 30.0
"""Shorter starts are cheap enough to follow arrivals closely: both slot lengths are tried."""
_FIRST_LOAD = 1.2
_LEAST_LOAD, _MOST_LOAD = 0.1, 8.0
_APPROACHES, _MENDS, _PUSHES, _SURRENDERS = 6, 6, 3, 2
_MOST_RUNS = _APPROACHES + _MENDS + _PUSHES + _MENDS + _SURRENDERS
_GAIN = 0.4
_FARTHEST = 0.3
_PUSH = 1.05
_STRIDE = 3
"""Every third window is pushed at a time: a miss then belongs to one pushed window."""
_RELIEF = 1.3
"""The factor on the load of a window that is given up: its queue must not spoil the next window."""

Bools = np.ndarray[tuple[int], np.dtype[np.bool_]]


def oracle(asked: Scenario, progress: Callable[[float], None] | None = None) -> Result:
    """The cheapest schedule found that attains 99 %, under the policy name `oracle`.

    Every cold start takes the mean of its range, and none fails. Replicas at time 0 beyond those that other
    policies begin with are billed a whole cold start, as if asked for before. If no schedule attains 99 %,
    the result is the cheapest of those that attain most.

    Raises TraceError for a line of the trace that is no request.
    """
    mean_s = sum(asked.conditions.cold_start_s) / 2
    slots = (_SLOT_S,) if mean_s >= _SHORT_COLD_START_S else (_SLOT_S, _SHORT_SLOT_S)
    warm = asked.warm()
    best: _Run | None = None
    for turn, slot_s in enumerate(slots):

        def share(part: float, turn: int = turn) -> None:
            if progress is not None:
                progress((turn + part) / len(slots))

        need = read_need(asked, slot_s)
        if not len(need.requests):
            nothing = Schedule([(0.0, asked.bounds[0])], ORACLE)
            return asked.run(Sampled(nothing), warm=asked.bounds[0], progress=share)
        found = _Search(asked, need, mean_s, warm, share).best()
        best = found if best is None or found.beats(best) else best
    assert best is not None
    if progress is not None:
        progress(1.0)
    return best.result


@dataclass(frozen=True, slots=True)
class _Run:
    """A schedule replayed."""

    load: Floats
    result: Result
    ok: Bools
    """Whether each window is attained, or lost with any fleet."""
    miss: Floats
    """The share of first tokens, or of later tokens if that is more, that came too late in each window."""

    def beats(self, other: _Run) -> bool:
        mine, theirs = (min(run.result.attainment, GOAL) for run in (self, other))
        if mine != theirs:
            return mine > theirs
        return self.result.gpu_seconds.total < other.result.gpu_seconds.total


class _Search:
    """One search with slots of one length."""

    def __init__(
        self, asked: Scenario, need: Need, cold_start_s: float, warm: int, share: Callable[[float], None]
    ) -> None:
        self._asked = asked
        self._need = need
        self._cold_start_s = cold_start_s
        self._warm = warm
        self._share = share
        # The plan has every node cold: a start on a warm node is paid for a little too long.
        self._conditions = replace(
            asked.conditions, cold_start_s=(cold_start_s, cold_start_s), start_failures=0.0
        )
        least, most = asked.bounds
        self._bounds = least, min(most, asked.conditions.capacity or most)
        self._lost = need.lost.copy()
        self._runs = 0
        self._best: _Run | None = None

    def best(self) -> _Run:
        """The whole search; its best schedule."""
        run = self._mend(self._approach())
        self._mend(self._push(run))
        self._surrender()
        assert self._best is not None
        return self._best

    # -- a schedule

    def _timetable(self, load: Floats) -> Timetable:
        slot_s = self._need.slot_s
        ready = np.ceil(self._need.replicas / load[self._need.window] - 1e-9).astype(np.int64)
        ready = np.clip(ready, *self._bounds)
        ready[-1] = max(int(ready[-1]), 1)  # queued requests are answered in the end
        keep_s = self._cold_start_s + self._need.drain_s
        return Timetable(slot_s, self._cold_start_s, fill_gaps(ready, math.ceil(keep_s / slot_s)))

    def _run(self, load: Floats) -> _Run:
        timetable = self._timetable(load)
        schedule = Schedule(timetable.steps, ORACLE)
        starts, before_s = timetable.prepaid(self._warm)
        result = self._asked.run(
            Sampled(schedule),
            warm=int(timetable.asked[0]),
            conditions=self._conditions,
            progress=lambda part: self._share(min((self._runs + part) / _MOST_RUNS, 1.0)),
        )
        self._runs += 1
        spent = result.gpu_seconds
        warming = spent.warming + before_s * self._asked.profile.gpus
        result = replace(result, gpu_seconds=replace(spent, warming=warming), starts=result.starts + starts)
        windows = result.windows
        late = 1.0 - windows.ttft_ok / np.maximum(windows.requests, 1.0)
        miss = np.where(windows.requests > 0, np.maximum(late, 1.0 - windows.itl_ok_share), 0.0)
        run = _Run(load, result, (windows.attained > 0) | self._lost, miss)
        if self._best is None or run.beats(self._best):
            self._best = run
        return run

    # -- the search

    def _approach(self) -> Floats:
        """The highest load at which each window attained its targets; all windows are searched together."""
        allowed = 1.0 - self._asked.knobs.ttft_percentile / 100.0
        load = np.full(len(self._lost), _FIRST_LOAD)
        low, high = np.zeros(len(load)), np.full(len(load), np.inf)
        for _ in range(_APPROACHES):
            run = self._run(load)
            ok = run.ok
            # Neighbours move the bounds a little, so a contradicted bound is relaxed.
            low = np.where(ok, np.maximum(low, load), np.where(low >= load, load * 0.97, low))
            high = np.where(ok, np.where(high <= load, load * 1.03, high), np.minimum(high, load))
            step = _GAIN * np.log(allowed / np.clip(run.miss, allowed / 10, 10 * allowed))
            step = np.clip(
                np.where(ok, np.maximum(step, 0.01), np.minimum(step, -0.02)), -_FARTHEST, _FARTHEST
            )
            wanted = np.clip(load * np.exp(step), _LEAST_LOAD, _MOST_LOAD)
            between = np.sqrt(low * np.where(np.isfinite(high), high, 1.5 * low))
            load = np.where(((wanted <= low) | (wanted >= high)) & (low > 0), between, wanted)
            load = np.where(self._lost, _FIRST_LOAD, load)
        return np.clip(np.where(low > 0, low, 0.9 * load), _LEAST_LOAD, _MOST_LOAD)

    def _mend(self, load: Floats) -> _Run:
        """Lower the load of windows that miss, more with every turn, until few enough miss."""
        missed = np.zeros(len(load))
        for turn in range(_MENDS):
            run = self._run(load)
            if turn == _MENDS - 1 or self._enough(run.ok):
                break
            missed = np.where(run.ok, missed, missed + 1)
            load = np.where(run.ok, load, load * np.where(run.miss > 0.1, 0.9, 0.97) ** missed)
            # No fleet attains it: it costs no more than the others.
            gone = load < _LEAST_LOAD
            self._lost |= gone
            load = np.where(gone, _FIRST_LOAD, load)
        return run

    def _enough(self, ok: Bools) -> bool:
        requests = self._need.requests
        return float(requests[~ok].sum()) <= (1.0 - GOAL) * float(requests.sum())

    def _push(self, run: _Run) -> Floats:
        """Raise the load of every third window; keep it where neither it nor the window before misses."""
        load = run.load
        index = np.arange(len(load))
        for turn in range(_PUSHES):
            pushed = (index % _STRIDE == turn % _STRIDE) & run.ok & (self._need.requests > 0) & ~self._lost
            tried = np.where(pushed, np.minimum(load * _PUSH, _MOST_LOAD), load)
            hurt = run.ok & ~self._run(tried).ok
            load = np.where(pushed & ~(hurt | np.roll(hurt, -1)), tried, load)
        return load

    def _surrender(self) -> None:
        """Give up the windows that cost most a request, as far as the goal allows."""
        run = self._best
        assert run is not None
        requests = self._need.requests
        spare = (1.0 - GOAL) * float(requests.sum()) - float(requests[~run.ok | self._lost].sum())
        if run.result.attainment < GOAL or spare <= 0:
            return
        saved = self._savings(run)
        order = np.argsort(-saved / np.maximum(requests, 1.0))
        chosen = []
        for window in order.tolist():
            if run.ok[window] and saved[window] > 0 and 0 < requests[window] <= spare:
                chosen.append(window)
                spare -= requests[window]
        for _ in range(_SURRENDERS):
            if not chosen:
                return
            load = run.load.copy()
            load[chosen] = self._relieved_load(run.load, chosen)
            if self._run(load).result.attainment >= GOAL:
                return
            chosen = chosen[: len(chosen) // 2]

    def _relieved_load(self, load: Floats, windows: Ints | list[int]) -> Floats:
        """The load of windows that are given up; infinite if one replica would do: requests can wait."""
        peak = np.zeros(len(load))
        np.maximum.at(peak, self._need.window, self._need.replicas / load[self._need.window])
        return np.where(peak[windows] <= 1.0, np.inf, load[windows] * _RELIEF)

    def _savings(self, run: _Run) -> Floats:
        """GPU-seconds that giving up each window by itself would save, by the bill of the schedule."""
        need, slot_s = self._need, self._need.slot_s
        start_s = self._cold_start_s + need.drain_s
        reach = math.ceil(start_s / slot_s)
        per_window = round(WINDOW_S / slot_s)
        saved = np.zeros(len(run.load))
        load = run.load[need.window]
        relieved = self._relieved_load(run.load, np.arange(len(run.load)))[need.window]
        now = np.clip(np.ceil(need.replicas / load - 1e-9), *self._bounds)
        then = np.clip(np.ceil(need.replicas / relieved - 1e-9), *self._bounds)
        for window in np.flatnonzero(need.requests > 0).tolist():
            first = window * per_window
            around = slice(max(first - 2 * reach, 0), first + per_window + 2 * reach)
            without = now[around].copy()
            inside = slice(first - around.start, first - around.start + per_window)
            without[inside] = then[first : first + per_window]
            saved[window] = seconds(fill_gaps(now[around], reach), slot_s, start_s) - seconds(
                fill_gaps(without, reach), slot_s, start_s
            )
        return saved
