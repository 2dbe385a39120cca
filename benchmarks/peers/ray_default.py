"""Ray Serve's own autoscaling, by the number of requests."""

import math
from collections import deque
from dataclasses import dataclass
from itertools import pairwise

from replay.policies import Sample
from replay.ray_semantics import CONTROL_LOOP_S

TARGET_ONGOING_REQUESTS = 2.0
_LOOK_BACK_S = 30.0
_RECORD_S = 6.0
_PUSH_S = 10.0
_LEAST_WINDOW_S = 1e-3
_EPS_S = 1e-6
Points = list[tuple[float, float]]


class RayDefault:
    """Ray Serve 2.60 with a deployment's default policy.

    desired = ceil(total / target), where total is the mean of the requests that run and queue
    (`HandleReports`). A change must be wanted for its delay without a pause; a change of direction begins
    anew. Where nothing is ready and something is queued, one replica is asked for at once. Zero is reached
    from one only.

    Source: `ray/serve/autoscaling_policy.py` of Ray 2.60.0 with `AutoscalingConfig`'s defaults, except that 0
    replicas are allowed. The tests hold it to Ray's own code. (Ray Serve LLM sets the target to 1e9 and so
    never scales by itself.)
    """

    interval_s = CONTROL_LOOP_S

    def __init__(
        self,
        target_ongoing_requests: float = TARGET_ONGOING_REQUESTS,
        *,
        upscale_delay_s: float = 30.0,
        downscale_delay_s: float = 600.0,
    ) -> None:
        usual = target_ongoing_requests == TARGET_ONGOING_REQUESTS
        self.name = "ray" if usual else f"ray:{target_ongoing_requests:g}"
        self._requests = target_ongoing_requests
        self._up_delay_s = upscale_delay_s
        self._down_delay_s = downscale_delay_s
        self._reports = HandleReports()
        self._direction = 0
        self._since: float | None = None

    def decide(self, sample: Sample) -> int:
        """One turn of Ray's controller."""
        total = self._reports.total(sample)
        replicas = self._decide(total, sample.ready, sample.target, sample.at)
        self._reports.observe(sample)
        return replicas

    def _decide(self, total: float, ready: int, target: int, now: float) -> int:
        if ready == 0:
            if total > 0:
                return max(1, target)
            return target if target > 0 else self._delayed(0, 0, now)
        # As Ray has it: `ready` cancels but for rounding, which decides at a whole number.
        desired = ready * (total / (self._requests * ready))
        return self._delayed(max(0, self._stepped(desired, ready)), target, now)

    def _stepped(self, desired: float, ready: int) -> int:
        """`desired` by one step from `ready`, which is at least one replica down."""
        step = math.ceil(ready + (desired - ready))
        return step - 1 if math.ceil(desired) < ready and step == ready else step

    def _delayed(self, desired: int, target: int, now: float) -> int:
        """`desired` if it has been wanted for long enough, else `target`."""
        direction = (desired > target) - (desired < target)
        if direction != self._direction:
            self._since = None
        self._direction = direction
        if direction == 0:
            return target
        if self._since is None:
            self._since = now
        if direction > 0:
            delay_s = self._up_delay_s
        else:
            delay_s = self._down_delay_s
            desired = max(1 if target > 1 else 0, desired)
        if now - self._since + _EPS_S < delay_s:
            return target
        self._since = None
        self._direction = 0
        return desired


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
    """The one deployment handle, and the controller's memory of its reports.

    A handle records, every 6 s, how many requests it has queued and how many it has sent to each replica.
    Every 10 s it pushes the records of the last 30 s to the controller. A request that is queued while no
    replica is ready pushes at once, but only earlier records. The controller adds up these step functions. It
    takes their mean from when the last of them begins, at a new replica's first report, until now. It leaves
    out replicas that no longer run, history and all. So the mean covers 30 s only while the fleet stays the
    same. There is one handle here, as an ingress with one replica has; the controller sees a report in the
    tick after its push.

    Source: `ray/serve/_private/router.py` (`RouterMetricsManager`), `autoscaling_state.py` and
    `autoscaling_metrics_merge.py` of Ray 2.60.0.
    """

    def __init__(self) -> None:
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
            self._next_record += _RECORD_S
            self._record(sample)
        pushed = at + _EPS_S >= self._next_push
        if pushed:
            self._next_push += _PUSH_S
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
        start = at - _LOOK_BACK_S
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
