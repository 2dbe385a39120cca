"""AIBrix's pod autoscaler."""

import math

from benchmarks.peers.sliding_windows import Highest, Mean
from replay.sample import Sample

_TOLERANCE = 0.1
_UP_RATE = 2.0
_DOWN_RATE = 2.0
_WINDOW_S = 180.0
_DOWN_COOLDOWN_S = 300.0


class AibrixApa:
    """AIBrix's APA on ongoing requests a pod, with its defaults.

    Every 10 s, with u the mean number of requests of 180 s over the pods ready now, and T the target:
    above u/T = 1.1, ceil(n u/T) but at most 2n; below 0.9, ceil(n u/T) but at least n/2; in between n. Pods
    that start count as idle on the way up and as fully used on the way down. Up at once; down to the highest
    recommendation of its cooldown of 300 s. It does not scale to zero by default
    (it reads metrics of pods, and takes a scale of zero for "switched off"), so one replica is its least.

    Source: AIBrix, `pkg/controller/podautoscaler`: `algorithm/apa.go`, defaults in `context/context.go`, pods
    that start in `autoscaler.go`, sync in `podautoscaler_controller.go`. There the cooldown takes the lowest
    recommendation where its documentation has it guard against going down too soon; this does as documented.
    """

    interval_s = 10.0

    def __init__(self, target: float) -> None:
        self.name = f"apa:{target:g}"
        self._target = target
        self._usage = Mean(_WINDOW_S)
        self._recommended = Highest(_DOWN_COOLDOWN_S)

    def decide(self, sample: Sample) -> int:
        """One reconciliation."""
        current = sample.target
        if current < 1:
            return 1
        if sample.ready == 0:
            return current  # no pod, no metrics
        requests = self._usage.add(sample.at, float(sample.running.sum() + sample.waiting.sum()))
        desired = self._recommend(current, sample.ready, requests / sample.ready / self._target)
        highest = self._recommended.add(sample.at, desired)
        if desired < current:
            desired = min(current, highest)
        return max(1, desired)

    def _recommend(self, current: int, ready: int, load: float) -> int:
        starting = max(0, current - ready)
        if load > 1.0 + _TOLERANCE:
            wish = min(math.ceil(current * load), math.ceil(current * _UP_RATE))
            return max(current, min(wish, math.ceil(ready * load))) if starting else wish
        if load < 1.0 - _TOLERANCE:
            wish = max(math.ceil(current * load), math.floor(current / _DOWN_RATE))
            return min(current, max(wish, math.ceil(ready * load + starting))) if starting else wish
        return current
