"""Histograms of latencies over the replay, a minute and the last 30 s of a replica, and its reports."""

import math

import numpy as np

from replay.fleet.kernel.compiler import entry, inner
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
    Ints,
    Memory,
)


@entry
def write_reports(m: Memory, slots: Ints, now: float, reports: Floats) -> None:
    """Write the signals of replicas, in the order of `EngineSignals`; their means start again from zero."""
    for k in range(len(slots)):
        r = slots[k]
        rep = m.replicas[r]
        out = reports[k]
        current_slice(m, r, now)
        steps = max(rep.steps, 1.0)
        out[0] = rep.batch_size
        out[1] = rep.waiting
        out[2] = rep.context + rep.batch_size - rep.prefilling + rep.recompute_tokens
        out[3] = rep.waiting_tokens
        out[4] = rep.in_flight
        out[5] = rep.kv_used / m.rules[0].kv_cache_tokens
        out[6] = m.rules[0].kv_cache_tokens
        out[7] = rep.prefilled
        out[8] = rep.finished
        out[9] = rep.finished_prompt
        out[10] = rep.finished_output
        out[11] = rep.steps
        out[12] = rep.sum_s / steps
        out[13] = rep.sum_batch / steps
        out[14] = rep.sum_prefill / steps
        out[15] = rep.sum_kv / steps
        read_percentiles(m, r, out)
        rep.steps = rep.sum_s = rep.sum_batch = rep.sum_prefill = rep.sum_kv = 0.0


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
    """Add to a replica's histograms of the last 30 s, in bin `where`."""
    m.recent[r, part, at, where] += count
    m.recent[r, part, SLICES, where] += count


@inner
def read_percentiles(m: Memory, r: int, out: Floats) -> None:
    """Write, for each part of latency, the number observed in the last 30 s and its percentiles."""
    for part in range(3):
        percents = _ITL_PERCENTILES if part == ITL_PART else _PERCENTILES
        first = 26 if part == ITL_PART else 17 + 4 * part
        count = below = 0.0
        for b in range(WINDOW_BINS):
            count += m.recent[r, part, SLICES, b]
        out[25 if part == ITL_PART else 16] = count
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
