"""Kubernetes' horizontal pod autoscaler with KEDA, and AIBrix's variant of it."""

import math
from collections import deque
from collections.abc import Iterable
from statistics import fmean as mean
from typing import Literal

from replay.policies import Sample

Metric = Literal["waiting", "ongoing"]
_TOLERANCE = 0.1
_STABLE_DOWN_S = 300.0
_UP_FACTOR = 2
_UP_REPLICAS = 4
_COOLDOWN_S = 300.0
_POLL_EVERY = 2
"""Polls are every second sync: KEDA polls every 30 s, HPA syncs every 15 s."""
_APA_RATE = 2.0
_USAGE_S = 180.0


class Recent:
    """The values of the last `length_s` seconds, the start of them excluded."""

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._values: deque[tuple[float, float]] = deque()

    def add(self, at: float, value: float) -> Iterable[float]:
        """Take `value` in, and return all values, of which it is one."""
        self._values.append((at, value))
        while self._values[0][0] <= at - self._length_s:
            self._values.popleft()
        return [value for _, value in self._values]


class HpaKeda:
    """HPA v2 on an average value a replica, as a KEDA `ScaledObject` sets it up, with both's defaults.

    Every 15 s: ceil(metric / target), unless metric / (target * replicas) is within 10 % of 1. One step up
    is at most to the double or by 4 replicas, whichever is more. Down goes to the highest wish of 300 s. HPA
    alone never goes to zero. KEDA does, from any number, after 300 s without activity. KEDA polls every 30 s
    and goes back to one replica at the first poll that finds activity. Activity is a request that runs, waits
    or queues for a cold start, or that arrived since the last poll. These are the keep-alive triggers of vLLM
    production-stack's tutorial; without them, an empty queue would end requests that run.

    Source: kubernetes, `pkg/controller/podautoscaler` (replica calculator, default behavior); KEDA's
    `ScaledObject` specification; vLLM production-stack, "Autoscaling with KEDA".

    Args:
        metric: Requests waiting in engines and the ingress, or all requests that have not ended.
        target: Of the metric, for each replica.
    """

    interval_s = 15.0

    def __init__(self, metric: Metric, target: float) -> None:
        self.name = f"hpa:{metric}={target:g}"
        self._metric = metric
        self._target = target
        self._wishes = Recent(_STABLE_DOWN_S)
        self._begun = False
        self._turns = 0
        self._arrivals = 0.0
        self._active_at: float | None = None

    def decide(self, sample: Sample) -> int:
        """One sync of HPA, and every second time a poll of KEDA before it."""
        if self._active_at is None:
            # Replicas that run at the start have not been idle yet.
            self._active_at = sample.at if sample.target else -math.inf
        polls = self._turns % _POLL_EVERY == 0
        self._turns += 1
        if polls:
            self._poll(sample)
        if sample.target == 0:
            return 1 if polls and self._active_at == sample.at else 0
        if polls and sample.at - self._active_at >= _COOLDOWN_S:
            return 0
        return self._sync(sample)

    def _poll(self, sample: Sample) -> None:
        if sample.ongoing > 0 or sample.arrivals > self._arrivals:
            self._active_at = sample.at
        self._arrivals = sample.arrivals

    def _sync(self, sample: Sample) -> int:
        current = sample.target
        value = float(sample.waiting.sum()) + sample.held if self._metric == "waiting" else sample.ongoing
        ratio = value / (self._target * current)
        desired = current if abs(ratio - 1.0) <= _TOLERANCE else math.ceil(value / self._target)
        if not self._begun:
            self._begun = True
            self._wishes.add(sample.at, current)  # the initial replicas count as the first wish
        highest = int(max(self._wishes.add(sample.at, desired)))
        if desired < current:
            desired = min(current, highest)
        return max(1, min(desired, max(current * _UP_FACTOR, current + _UP_REPLICAS)))


class AibrixApa:
    """AIBrix's APA on ongoing requests a pod, with its defaults.

    Every 10 s, with n pods, u the mean requests of 180 s per ready pod, and T the target: above u/T = 1.1,
    ceil(n u/T) but at most 2n; below 0.9, ceil(n u/T) but at least n/2; in between n. Pods that start count
    as idle on the way up and as fully used on the way down. Up goes at once. Down goes to the highest
    recommendation of 300 s. The least is one replica: AIBrix reads metrics of pods, and takes a scale of zero
    for "switched off".

    Source: AIBrix, `pkg/controller/podautoscaler`: `algorithm/apa.go`, defaults in `context/context.go`, pods
    that start in `autoscaler.go`, sync in `podautoscaler_controller.go`. AIBrix's code takes the lowest
    recommendation of the cooldown; this follows its documentation, by which the cooldown delays going down.
    """

    interval_s = 10.0

    def __init__(self, target: float) -> None:
        self.name = f"apa:{target:g}"
        self._target = target
        self._usage = Recent(_USAGE_S)
        self._recommended = Recent(_STABLE_DOWN_S)

    def decide(self, sample: Sample) -> int:
        """One reconciliation."""
        current = sample.target
        if current < 1:
            return 1
        if sample.ready == 0:
            return current  # no pod, no metrics
        requests = mean(self._usage.add(sample.at, float(sample.running.sum() + sample.waiting.sum())))
        desired = self._recommend(current, sample.ready, requests / sample.ready / self._target)
        highest = int(max(self._recommended.add(sample.at, desired)))
        if desired < current:
            desired = min(current, highest)
        return max(1, desired)

    def _recommend(self, current: int, ready: int, load: float) -> int:
        starting = max(0, current - ready)
        if load > 1.0 + _TOLERANCE:
            wish = min(math.ceil(current * load), math.ceil(current * _APA_RATE))
            return max(current, min(wish, math.ceil(ready * load))) if starting else wish
        if load < 1.0 - _TOLERANCE:
            wish = max(math.ceil(current * load), math.floor(current / _APA_RATE))
            return min(current, max(wish, math.ceil(ready * load + starting))) if starting else wish
        return current
