"""A run over time: rates, latencies and errors of windows of a round width."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadtests.columns import Columns
from loadtests.percentiles import Floats, Percentiles

WIDTHS_S = (1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0)
MOST_WINDOWS = 120


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of a run. Times are seconds since the run's start."""

    start_s: float
    end_s: float
    """The last window may be shorter or longer than the others, by up to half of them: one request in a
    remainder of a millisecond would be a thousand a second."""
    arrivals: int
    """Requests whose intended time lies in it."""
    rate_rps: float
    """The same a second."""
    ttft_s: Percentiles | None
    """TTFT of these requests; infinity where it never came. None if there are no requests."""
    itl_s: Percentiles | None
    """Gaps before the pieces that arrived in it; None if there are none."""
    errors: int
    """How many of these requests were rejected, failed, broken or abandoned, at any time."""
    open_streams: float
    """Requests sent and not ended, on average over the window."""


def windows(columns: Columns, duration_s: float) -> tuple[Window, ...]:
    """The whole run, up to the end of what ended last, without gaps; empty where nothing took time."""
    ends = [duration_s, *columns.ended_s.tolist(), *columns.at_s.tolist()]
    end = max(ends)
    if end <= 0:
        return ()
    width = width_s(end)
    count = max(1, math.floor(end / width + 0.5))
    edges = np.append(np.arange(count) * width, end)
    arrived = _split(columns.at_s, width, count)
    gaps = _split(columns.gap_at_s, width, count)
    streams = _open(columns, edges)
    out = []
    for at in range(count):
        start, stop = float(edges[at]), float(edges[at + 1])
        requests = arrived[at]
        out.append(
            Window(
                start_s=start,
                end_s=stop,
                arrivals=len(requests),
                rate_rps=len(requests) / (stop - start),
                ttft_s=Percentiles.of(columns.ttft_s[requests]),
                itl_s=Percentiles.of(columns.gap_s[gaps[at]]),
                errors=int(np.count_nonzero(columns.error[requests])),
                open_streams=float(streams[at]),
            )
        )
    return tuple(out)


def width_s(duration_s: float) -> float:
    """The narrowest round width that makes at most `MOST_WINDOWS`; beyond ten hours, a multiple of 300 s."""
    for width in WIDTHS_S:
        if duration_s <= width * MOST_WINDOWS:
            return width
    return WIDTHS_S[-1] * float(np.ceil(duration_s / (WIDTHS_S[-1] * MOST_WINDOWS)))


def _split(times: Floats, width: float, count: int) -> list[npt.NDArray[np.int64]]:
    """The places in `times`, by window. What lies before 0 is in the first, beyond the end in the last."""
    window = np.clip((times // width).astype(np.int64), 0, count - 1)
    order = np.argsort(window, kind="stable")
    return np.split(order, np.searchsorted(window[order], np.arange(1, count)))


def _open(columns: Columns, edges: Floats) -> Floats:
    """Requests open on average between the edges: differences of the time spent open until each of them."""
    spent = _since(columns.sent_s, edges) - _since(columns.ended_s, edges)
    return np.diff(spent) / np.diff(edges)


def _since(times: Floats, edges: Floats) -> Floats:
    """At each edge, the seconds gone by since each of `times` before it, added up."""
    ordered = np.sort(times)
    before = np.searchsorted(ordered, edges, side="right")
    total = np.concatenate(([0.0], np.cumsum(ordered)))
    since: Floats = before * edges - total[before]
    return since
