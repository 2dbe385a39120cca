"""Percentiles of the latencies of the last seconds."""

from collections.abc import Collection
from math import ceil, log

import numpy as np

_SHORTEST_S = 1e-4
_LONGEST_S = 1e3
# A percentile is off by less than the width of its bucket, so 5 % at most.
_RATIO = 1.05
_BUCKETS = ceil(log(_LONGEST_S / _SHORTEST_S) / log(_RATIO))
_EDGES_S = _SHORTEST_S * _RATIO ** np.arange(1, _BUCKETS)
"""The upper ends of all buckets but the last."""
_SLICES = 6


class LatencyWindow:
    """Latencies of the last `window_s` seconds, in log-spaced buckets from 0.1 ms to 1000 s.

    A latency outside counts as the nearest bound. Old observations leave in slices of a sixth of the window.
    So the window covers 5/6 of `window_s` to all of it. `now` is always in seconds of the same clock. While
    the clock goes back, no observation leaves.
    """

    def __init__(self, window_s: float) -> None:
        self._slice_s = window_s / _SLICES
        self._slices = np.zeros((_SLICES, _BUCKETS), np.int64)
        self._at = 0
        """The number of the current slice, counted from the clock's zero."""

    def observe(self, values_s: Collection[float], now: float) -> None:
        """Note latencies, in seconds. 10,000 take half a millisecond."""
        self._turn(now)
        buckets = np.searchsorted(_EDGES_S, np.fromiter(values_s, float, len(values_s)), "right")
        self._slices[self._at % _SLICES] += np.bincount(buckets, minlength=_BUCKETS)

    def percentile(self, q: float, now: float) -> float:
        """Return the seconds that `q` percent (0 to 100) of observations do not exceed; 0.0 without any."""
        self._turn(now)
        below = self._slices.sum(axis=0).cumsum()
        rank = q / 100.0 * below[-1]
        if not below[-1]:
            return 0.0
        # The first bucket that reaches the rank. At least 0.5, so that it is not empty for q = 0.
        index = int(np.searchsorted(below, max(rank, 0.5)))
        before = below[index - 1] if index else 0
        share = (rank - before) / (below[index] - before)
        return float(_SHORTEST_S * _RATIO ** (index + min(max(share, 0.0), 1.0)))

    def count(self, now: float) -> int:
        self._turn(now)
        return int(self._slices.sum())

    def _turn(self, now: float) -> None:
        """Make the slice of `now` the current one, and empty the slices that have left the window."""
        at = int(now // self._slice_s)
        for number in range(max(self._at, at - _SLICES) + 1, at + 1):
            self._slices[number % _SLICES] = 0
        self._at = max(self._at, at)
