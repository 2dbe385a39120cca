"""Log-spaced histograms of latencies: of the whole replay, of a minute, and of a replica's last 30 s."""

import math

import numpy as np

from replay.fleet.kernel.compiler import inner
from replay.fleet.layout import (
    BINS,
    ITL_PART,
    RATIO,
    SHORTEST_S,
    SLICE_S,
    SLICES,
    WINDOW_BINS,
    WINDOW_RATIO,
    WINDOW_SHORTEST_S,
    Floats,
    Memory,
)

_PER_LOG, _LOG_SHORTEST = 1.0 / math.log(RATIO), math.log(SHORTEST_S)
_WINDOW_PER_LOG, _WINDOW_LOG_SHORTEST = 1.0 / math.log(WINDOW_RATIO), math.log(WINDOW_SHORTEST_S)
_PERCENTILES = np.array([0.50, 0.90, 0.95, 0.99])
_ITL_PERCENTILES = np.array([0.50, 0.90, 0.95, 0.96, 0.97, 0.98, 0.99])


@inner
def log_of(value: float) -> float:
    """The logarithm of a latency, for its bin; 0 s counts as the shortest."""
    return math.log(max(value, SHORTEST_S))


@inner
def bin_of(log: float) -> int:
    """The bin in the histograms of the whole replay, by the logarithm of a latency."""
    return min(max(int((log - _LOG_SHORTEST) * _PER_LOG), 0), BINS - 1)


@inner
def window_bin_of(log: float) -> int:
    """The bin in the histograms of a minute and of the last 30 s, which are `LatencyWindow`'s."""
    return min(max(int((log - _WINDOW_LOG_SHORTEST) * _WINDOW_PER_LOG), 0), WINDOW_BINS - 1)


@inner
def current_slice(m: Memory, r: int, t: float) -> int:
    """The slice of the last 30 s that `t` falls in; slices that are older are emptied."""
    rep = m.replicas[r]
    at = int(t / SLICE_S)
    for number in range(max(rep.slice + 1, at - SLICES + 1), at + 1):
        for part in range(m.recent.shape[1]):
            for b in range(WINDOW_BINS):
                m.recent[r, part, SLICES, b] -= m.recent[r, part, number % SLICES, b]
                m.recent[r, part, number % SLICES, b] = 0.0
    rep.slice = max(rep.slice, at)
    return at % SLICES


@inner
def note(m: Memory, r: int, part: int, at: int, where: int, count: float) -> None:
    """Add to what a replica reports of its last 30 s, in bin `where`."""
    m.recent[r, part, at, where] += count
    m.recent[r, part, SLICES, where] += count


@inner
def read_percentiles(m: Memory, r: int, out: Floats) -> None:
    """Write, for each part of latency, the number observed in the last 30 s and its percentiles."""
    for part in range(3):
        percents = _ITL_PERCENTILES if part == ITL_PART else _PERCENTILES
        first = 29 if part == ITL_PART else 20 + 4 * part
        count = below = 0.0
        for b in range(WINDOW_BINS):
            count += m.recent[r, part, SLICES, b]
        out[28 if part == ITL_PART else 19] = count
        done = 0
        for b in range(WINDOW_BINS):
            here = m.recent[r, part, SLICES, b]
            while done < len(percents) and here > 0 and below + here >= percents[done] * count:
                share = min(max((percents[done] * count - below) / here, 0.0), 1.0)
                out[first + done] = WINDOW_SHORTEST_S * WINDOW_RATIO ** (b + share)
                done += 1
            below += here
        for i in range(first + done, first + len(percents)):
            out[i] = 0.0
