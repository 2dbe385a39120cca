"""Timelines short enough to zoom and move without delay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from loadtests.traces.trace import Floats
from replay.result import Result, Timeline

MOST_POINTS = 3000
"""Twice the pixels of a wide page: more points would not be visible."""


def thinned(result: Result, most: int = MOST_POINTS) -> Result:
    """Return the result with at most `most` points in its timeline.

    Where several points become one, rates are averaged, and queues and replica counts keep their largest
    value, because readers look for short peaks.
    """
    points = len(result.timeline.at_s)
    if points <= most:
        return result
    group = -(-points // most)
    starts = np.arange(0, points, group)
    sizes = np.diff(np.append(starts, points))
    line = result.timeline

    def most_of(values: Floats) -> Floats:
        return np.maximum.reduceat(values, starts)

    return replace(
        result,
        timeline=Timeline(
            interval_s=line.interval_s * group,
            at_s=line.at_s[starts],
            arrivals_rps=np.add.reduceat(line.arrivals_rps, starts) / sizes,
            wanted=most_of(line.wanted),
            target=most_of(line.target),
            ready=most_of(line.ready),
            starting=most_of(line.starting),
            draining=most_of(line.draining),
            queued=most_of(line.queued),
            held=most_of(line.held),
        ),
    )
