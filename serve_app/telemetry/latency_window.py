"""Percentiles of the latencies of the last seconds, for two increments per observation."""

from bisect import bisect_left
from itertools import accumulate
from math import ceil, log

_SHORTEST_S = 1e-4
_LONGEST_S = 1e3
# A percentile is off by less than the width of its bucket, so 5 % at most.
_RATIO = 1.05
_PER_LOG = 1.0 / log(_RATIO)
_LOG_SHORTEST = log(_SHORTEST_S)
_BUCKETS = ceil(log(_LONGEST_S / _SHORTEST_S) * _PER_LOG)
_SLICES = 6


class LatencyWindow:
    """Latencies of the last `window_s` seconds, in log-spaced buckets from 0.1 ms to 1000 s.

    A latency outside counts as the nearest bound. Old observations leave a sixth of the window at a time,
    so that it covers between 5/6 of `window_s` and all of it. `now` is in seconds of one clock throughout;
    while the clock goes back, no observation leaves.
    """

    __slots__ = ("_at", "_current", "_slice_s", "_slices", "_totals")

    def __init__(self, window_s: float) -> None:
        self._slice_s = window_s / _SLICES
        self._slices = [[0] * _BUCKETS for _ in range(_SLICES)]
        self._totals = [0] * _BUCKETS
        self._at: int | None = None
        """The number of the current slice, counted from the clock's zero; None before the first."""
        self._current = self._slices[0]

    def observe(self, value_s: float, now: float) -> None:
        """Note a latency of `value_s` seconds. About 0.3 microseconds."""
        at = int(now // self._slice_s)
        if at != self._at:
            self._turn(at)
        if value_s <= _SHORTEST_S:
            index = 0
        elif value_s >= _LONGEST_S:
            index = _BUCKETS - 1
        else:
            index = int((log(value_s) - _LOG_SHORTEST) * _PER_LOG)
        self._current[index] += 1
        self._totals[index] += 1

    def percentile(self, q: float, now: float) -> float:
        """Return the seconds that `q` percent (0 to 100) of observations do not exceed; 0.0 without any."""
        self._turn(int(now // self._slice_s))
        below = list(accumulate(self._totals))
        rank = q / 100.0 * below[-1]
        if not below[-1]:
            return 0.0
        # The first bucket that reaches the rank and is not empty, which matters for q = 0.
        index = bisect_left(below, max(rank, 0.5))
        before = below[index] - self._totals[index]
        share = (rank - before) / self._totals[index]
        return _SHORTEST_S * float(_RATIO ** (index + min(max(share, 0.0), 1.0)))

    def count(self, now: float) -> int:
        """Return the number of observations in the window."""
        self._turn(int(now // self._slice_s))
        return sum(self._totals)

    def _turn(self, at: int) -> None:
        """Make `at` the current slice, and empty those that have left the window meanwhile."""
        if self._at is None:
            self._at = at
        for number in range(max(self._at, at - _SLICES) + 1, at + 1):
            leaving = self._slices[number % _SLICES]
            if any(leaving):
                self._totals = [total - count for total, count in zip(self._totals, leaving, strict=True)]
                self._slices[number % _SLICES] = [0] * _BUCKETS
        self._at = max(self._at, at)
        self._current = self._slices[self._at % _SLICES]
