"""Sliding windows that several laws share. Running sums: no call looks at the whole window."""

import math
from collections import deque

_DIGITS = 1e6


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


class Mean:
    """The mean of the values of the last `length_s` seconds."""

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._values: deque[tuple[float, float]] = deque()
        self._total = 0.0

    def add(self, at: float, value: float) -> float:
        """Take `value` in, and return the mean, of which it is part."""
        values = self._values
        values.append((at, value))
        self._total += value
        while values[0][0] <= at - self._length_s:
            self._total -= values.popleft()[1]
        return max(0.0, self._total / len(values))


class Highest:
    """The highest value of the last `length_s` seconds, the start of them excluded."""

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._falling: deque[tuple[float, int]] = deque()

    def add(self, at: float, value: int) -> int:
        """Take `value` in, and return the highest, which it may be."""
        falling = self._falling
        while falling and falling[-1][1] <= value:
            falling.pop()
        falling.append((at, value))
        while falling[0][0] <= at - self._length_s:
            falling.popleft()
        return falling[0][1]
