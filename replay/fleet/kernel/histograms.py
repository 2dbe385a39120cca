"""Histograms of latencies over the replay, a minute and the last 30 s of a replica, and its reports."""

import math

import numpy as np

from replay.fleet.kernel.compiler import entry, inner
from replay.fleet.layout import (
    BACKGROUND,
    BINS,
    ITL_PART,
    NONE,
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
from serve_app.wire.signals import ENGINE_FIELDS

# Where groups of signals begin in a report.
_BACKGROUND, _ONGOING, _STEPS, _TTFT_COUNT, _ITL_COUNT = map(
    ENGINE_FIELDS.index,
    ("background_running_requests", "ongoing_requests", "steps", "ttft_count", "itl_count"),
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
        out[_ONGOING] = rep.in_flight + rep.background
        out[_ONGOING + 1] = rep.kv_used / m.rules[0].kv_cache_tokens
        out[_ONGOING + 2] = m.rules[0].kv_cache_tokens
        out[_ONGOING + 3] = rep.prefilled
        out[_ONGOING + 4] = rep.finished
        out[_ONGOING + 5] = rep.finished_prompt
        out[_ONGOING + 6] = rep.finished_output
        out[_STEPS] = rep.steps
        out[_STEPS + 1] = rep.sum_s / steps
        out[_STEPS + 2] = rep.sum_batch / steps
        out[_STEPS + 3] = rep.sum_prefill / steps
        out[_STEPS + 4] = rep.sum_kv / steps
        if rep.background:
            set_background_apart(m, r, out)
        read_percentiles(m, r, out)
        rep.steps = rep.sum_s = rep.sum_batch = rep.sum_prefill = rep.sum_kv = 0.0


@inner
def set_background_apart(m: Memory, r: int, out: Floats) -> None:
    """Move the requests and tokens of the lane `background` to signals of their own."""
    rep = m.replicas[r]
    for i in range(rep.batch_size - rep.background_batch, rep.batch_size):
        request = m.requests[m.batch[r, i]]
        out[_BACKGROUND] += 1
        if request.todo == 0:
            out[_BACKGROUND + 2] += request.prompt + request.output - (request.ends - rep.taken)
        elif request.generated:
            out[_BACKGROUND + 2] += request.todo
        else:
            out[_BACKGROUND + 3] += request.prompt
    q = rep.head
    while q != NONE:
        request = m.requests[q]
        if request.lane == BACKGROUND:
            out[_BACKGROUND + 1] += 1
            out[_BACKGROUND + (2 if request.generated else 3)] += request.todo
        q = request.next
    for i in range(4):
        out[i] -= out[_BACKGROUND + i]


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
        first = _ITL_COUNT + 1 if part == ITL_PART else _TTFT_COUNT + 1 + 4 * part
        count = below = 0.0
        for b in range(WINDOW_BINS):
            count += m.recent[r, part, SLICES, b]
        out[_ITL_COUNT if part == ITL_PART else _TTFT_COUNT] = count
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
