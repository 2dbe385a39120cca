"""Kubernetes' horizontal pod autoscaler with KEDA."""

import math
from typing import Literal

from benchmarks.peers.sliding_windows import Highest
from replay.sample import Sample

Metric = Literal["waiting", "ongoing"]
_TOLERANCE = 0.1
_STABILISE_DOWN_S = 300.0
_UP_FACTOR = 2
_UP_REPLICAS = 4
_COOLDOWN_S = 300.0
_POLL_EVERY = 2
"""Polls are every second sync: KEDA polls every 30 s, HPA syncs every 15 s."""


class HpaKeda:
    """HPA v2 on an average value a replica, as a KEDA `ScaledObject` sets it up, with both's defaults.

    Every 15 s: ceil(metric / target), unless metric / (target * replicas) is within 10 % of 1. Up at most to
    the double or by 4 a step, whichever is more; down to the highest wish of 300 s. HPA alone never goes to
    zero; KEDA does, from any number once nothing has been active for its cooldown of 300 s, and back to one
    at the first of its polls, every 30 s, that finds something. Active means a request that runs, waits or
    is held, or arrived since the last poll: the keep-alive triggers of vLLM production-stack's tutorial,
    without which a queue that is empty while requests run would end them.

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
        self._wishes = Highest(_STABILISE_DOWN_S)
        self._begun = False
        self._turns = 0
        self._arrivals = 0.0
        self._active_at: float | None = None

    def decide(self, sample: Sample) -> int:
        """One sync of HPA, and every second time a poll of KEDA before it."""
        if self._active_at is None:
            # What it finds running has not been idle yet.
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
            self._wishes.add(sample.at, current)  # what it finds counts as its first wish
        highest = self._wishes.add(sample.at, desired)
        if desired < current:
            desired = min(current, highest)
        return max(1, min(desired, max(current * _UP_FACTOR, current + _UP_REPLICAS)))
