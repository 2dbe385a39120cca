"""How Ray Serve 2.60 comes to the number of requests it scales by.

A deployment handle writes down, every 6 s (a fifth of the look-back period, at most the metrics interval),
how many requests it has queued and how many it has sent to each replica; every 10 s it pushes what it wrote
in the last 30 s to the controller. A request that is queued while there is no replica pushes at once, but
what is pushed then is still what was written last. The controller adds these step functions up, and takes
the mean from when the last of them begins (at a new replica's first report) to now; those of replicas that
no longer run are left out, history and all. So the mean is of 30 s only in a fleet that does not change.

Source: `ray/serve/_private/router.py` (`RouterMetricsManager`), `autoscaling_state.py` and
`autoscaling_metrics_merge.py` of Ray 2.60.0. There is one handle, which is what an ingress with one replica
has; a report is in the controller's hands at the tick after the one that it was pushed in.
"""

from collections import deque
from dataclasses import dataclass
from itertools import pairwise

from replay.sample import Sample

_RECORDS_A_LOOK_BACK = 5
_LEAST_WINDOW_S = 1e-3
_EPS_S = 1e-6
Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class _Report:
    queued: Points
    running: dict[int, Points]
    """By replica."""


@dataclass(frozen=True, slots=True)
class _Steps:
    """The sum of a report's step functions, integrated up to its last step."""

    start_s: float
    area: float
    last_s: float
    value: float


_NOTHING = _Steps(0.0, 0.0, 0.0, 0.0)


class HandleReports:
    """The one deployment handle and the controller's memory of its reports."""

    def __init__(self, look_back_s: float = 30.0, push_s: float = 10.0) -> None:
        self._look_back_s = look_back_s
        self._push_s = push_s
        self._record_s = min(look_back_s / _RECORDS_A_LOOK_BACK, push_s)
        self._next_record = self._next_push = 0.0
        self._queued: deque[tuple[float, float]] = deque()
        self._written: dict[int, deque[tuple[float, float]]] = {}
        self._arrivals = 0.0
        self._key: bytes | int = b""
        self._replicas: list[int] = []
        self._unused: list[int] = []
        self._report = _Report([], {})
        self._steps: _Steps | None = _NOTHING

    def total(self, sample: Sample) -> float:
        """Requests running and queued, as the controller has them at `sample.at`."""
        key: bytes | int = sample.replicas.tobytes() if sample.replicas.size else sample.ready
        if key != self._key:
            self._key = key
            self._replicas = sample.replicas.tolist() if sample.replicas.size else list(range(sample.ready))
            ready = set(self._replicas)
            self._written = {number: points for number, points in self._written.items() if number in ready}
            self._find_unused()
            self._steps = None
        steps = self._steps
        if steps is None:
            steps = self._steps = _added_up(self._report, self._replicas)
        if steps is _NOTHING:
            return 0.0
        end = sample.at if sample.at > steps.last_s else steps.last_s + _LEAST_WINDOW_S
        return (steps.area + steps.value * (end - steps.last_s)) / (end - steps.start_s)

    def observe(self, sample: Sample) -> None:
        """Write down and push what is due. Call it after `total`, which has seen the same replicas."""
        if self._unused:
            self._note_first_requests(sample)
        at = sample.at
        if at + _EPS_S >= self._next_record:
            self._next_record += self._record_s
            self._record(sample)
        pushed = at + _EPS_S >= self._next_push
        if pushed:
            self._next_push += self._push_s
        elif sample.ready == 0 and sample.held > 0 and sample.arrivals > self._arrivals:
            pushed = True
        self._arrivals = sample.arrivals
        if pushed:
            self._push(sample)

    def _find_unused(self) -> None:
        self._unused = [place for place, number in enumerate(self._replicas) if number not in self._written]

    def _note_first_requests(self, sample: Sample) -> None:
        """A handle knows of a replica from the first request it sends there."""
        known = [place for place in self._unused if sample.running[place] or sample.waiting[place]]
        if known:
            for place in known:
                self._written[self._replicas[place]] = deque()
            self._find_unused()

    def _counts(self, sample: Sample) -> dict[int, float]:
        sent = (sample.running + sample.waiting).tolist()
        return dict(zip(self._replicas, sent, strict=True))

    def _record(self, sample: Sample) -> None:
        at = round(sample.at, 2)  # the controller rounds to 10 ms
        counts = self._counts(sample) if self._written else {}
        self._queued.append((at, float(sample.held)))
        for replica, points in self._written.items():
            points.append((at, counts[replica]))
        self._prune(at)

    def _prune(self, at: float) -> None:
        start = at - self._look_back_s
        for points in (self._queued, *self._written.values()):
            while points and points[0][0] <= start:
                points.popleft()

    def _push(self, sample: Sample) -> None:
        at = round(sample.at, 2)
        self._prune(at)
        running: dict[int, Points] = {}
        if self._written:
            counts = self._counts(sample)
            running = {
                replica: list(points) or [(at, counts[replica])] for replica, points in self._written.items()
            }
        self._report = _Report(list(self._queued) or [(at, float(sample.held))], running)
        self._steps = None


def _added_up(report: _Report, replicas: list[int]) -> _Steps:
    """The sum over the handle's queue and the replicas that run."""
    series = [report.running[replica] for replica in replicas if replica in report.running]
    if report.queued:
        series.append(report.queued)
    if not series:
        return _NOTHING
    if len(series) == 1:
        merged = series[0]
        start = merged[0][0]
    else:
        changes: dict[float, float] = {}
        for points in series:
            before = 0.0
            for at, value in points:
                if value != before:
                    changes[at] = changes.get(at, 0.0) + value - before
                    before = value
        if not changes:
            return _NOTHING
        merged, value = [], 0.0
        for at in sorted(changes):
            value += changes[at]
            merged.append((at, value))
        start = merged[0][0]
        together = max(points[0][0] for points in series)
        if together <= merged[-1][0]:
            start = max(start, together)
    area = 0.0
    for (at, value), (until, _) in pairwise(merged):
        if until > start:
            area += value * (until - max(at, start))
    return _Steps(start, area, merged[-1][0], merged[-1][1])
