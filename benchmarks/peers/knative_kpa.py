"""Knative's pod autoscaler."""

import math
from collections import deque

from replay.policies import Sample

CONCURRENCY = 100.0
"""Knative's own target where a service gives none; its services have small requests."""
_UTILISATION = 0.7
_STABLE_S = 60
_PANIC_S = 6
_PANIC_THRESHOLD = 2.0
_UP_RATE = 1000.0
_DOWN_RATE = 2.0
_GRACE_S = 30.0
_TICK_S = 2.0
_EPS_S = 1e-6
_DIGITS = 1e6


class KnativeKpa:
    """Knative Serving's KPA on concurrency, with the defaults of `config-autoscaler`.

    Concurrency is recorded once a second, in replicas and in the activator, which queues requests while no
    replica is ready. Every 2 s the means of two windows, 60 s and 6 s, are divided by T = 70 % of the target,
    rounded up, and kept within half and a thousand times the ready replicas. Where the short window asks for
    twice the ready replicas, the policy panics: until 60 s after the last such tick it takes the larger of
    both and never goes down. A revision that was active and then idle for 60 s each is marked inactive, and
    its last replica goes 30 s later. The first queued request wakes it without waiting for the tick.

    Source: Knative Serving, `pkg/autoscaler/scaling/autoscaler.go`, `pkg/autoscaler/aggregation`,
    `pkg/reconciler/autoscaling/kpa/scaler.go` and `resources/target.go`.

    Args:
        concurrency: The `autoscaling.knative.dev/target` of the service: requests a replica.
    """

    interval_s = 1.0

    def __init__(self, concurrency: float = CONCURRENCY) -> None:
        self.name = "kpa" if concurrency == CONCURRENCY else f"kpa:{concurrency:g}"
        self._per_replica = max(1.0, concurrency * _UTILISATION)
        self._stable = Buckets(_STABLE_S)
        self._panic = Buckets(_PANIC_S)
        self._next_tick = 0.0
        self._panic_since: float | None = None
        self._most_in_panic = 0
        self._begun = False
        self._active_since: float | None = None
        self._inactive_since: float | None = None

    def decide(self, sample: Sample) -> int:
        """Note the concurrency of this second; decide at a tick and when the activator is poked."""
        if not self._begun:
            self._begin(sample)
        if sample.ready or sample.held:
            ongoing = sample.ongoing
            self._stable.record(sample.at, ongoing)
            self._panic.record(sample.at, ongoing)
        if sample.ready == 0:
            self._active_since = None
        elif self._active_since is None:
            self._active_since = sample.at
        poked = sample.target == 0 and sample.held > 0
        if sample.at + _EPS_S < self._next_tick and not poked:
            return sample.target
        if sample.at + _EPS_S >= self._next_tick:
            self._next_tick += _TICK_S
        if self._stable.empty(sample.at):
            return sample.target
        return self._allow_zero(sample, self._desired(sample))

    def _begin(self, sample: Sample) -> None:
        """More than one replica at the start is kept by panic mode until the windows have values."""
        self._begun = True
        self._next_tick = sample.at
        if sample.ready > 1:
            self._panic_since, self._most_in_panic = sample.at, sample.ready

    def _desired(self, sample: Sample) -> int:
        ready = max(1, sample.ready)
        most, least = math.ceil(_UP_RATE * ready), math.floor(ready / _DOWN_RATE)
        for_panic = math.ceil(self._panic.mean(sample.at) / self._per_replica)
        stable = min(max(math.ceil(self._stable.mean(sample.at) / self._per_replica), least), most)
        if for_panic / ready >= _PANIC_THRESHOLD:
            self._panic_since = sample.at
        elif self._panic_since is not None and sample.at > self._panic_since + _STABLE_S:
            self._panic_since = None
            self._most_in_panic = 0
        if self._panic_since is None:
            return stable
        self._most_in_panic = max(self._most_in_panic, stable, min(max(for_panic, least), most))
        return self._most_in_panic

    def _allow_zero(self, sample: Sample, desired: int) -> int:
        """`desired`, with zero delayed as Knative delays it."""
        if desired > 0 or sample.target == 0:
            if self._inactive_since is not None:
                self._active_since, self._inactive_since = sample.at, None
            return desired
        if self._active_since is None:
            return sample.target  # still starting
        if self._inactive_since is not None:
            return 0 if sample.at - self._inactive_since >= _GRACE_S else sample.target
        if sample.at - self._active_since < _STABLE_S:
            return 1
        self._inactive_since = sample.at
        return sample.target


class Buckets:
    """The mean of one value a second over a window, as Knative's metrics keep it.

    A window that began less than its length ago is averaged over the seconds since then; a second without a
    value counts as 0; a whole window without values begins anew.

    Source: Knative Serving, `pkg/autoscaler/aggregation`.
    """

    def __init__(self, length_s: int) -> None:
        self._length = length_s
        self._seconds: deque[tuple[int, float]] = deque()
        self._total = 0.0
        self._first = self._last = -length_s - 1

    def record(self, at: float, value: float) -> None:
        """Add `value` to the second of `at`; times never fall."""
        second = math.floor(at)
        if second - self._last >= self._length:
            self._seconds.clear()
            self._total = 0.0
            self._first = second
        self._last = second
        self._seconds.append((second, value))
        self._total += value
        self._drop(second)

    def mean(self, now: float) -> float:
        """The mean as of `now`, cut to six digits as Knative does; 0 without values."""
        second = math.floor(now)
        silent = max(0, second - self._last)
        if silent >= self._length:
            return 0.0
        self._drop(second)
        count = min(self._last - self._first + 1, self._length - silent)
        return math.floor(self._total / count * _DIGITS) / _DIGITS

    def empty(self, now: float) -> bool:
        """Whether nothing was recorded for longer than the window."""
        return math.floor(now) - self._last > self._length

    def _drop(self, second: int) -> None:
        seconds = self._seconds
        while seconds and seconds[0][0] <= second - self._length:
            self._total -= seconds.popleft()[1]
        if not seconds:
            self._total = 0.0  # no rest of rounding outlives the values
