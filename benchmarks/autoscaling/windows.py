"""The recorded windows that policies are judged on, each of smooth or bursty traffic."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from traces import open_trace
from traces.trace import Trace

SMOOTH_PEAK_TO_MEAN = 2.5
"""Up to this ratio of the busiest minute's rate to the mean, traffic counts as smooth; above, as bursty."""
MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Window:
    """A recorded stretch of traffic."""

    name: str
    path: Path
    cut_s: float | None
    """Only its first so many seconds are replayed; None: all of it."""
    requests: int
    duration_s: float
    """Seconds to the last arrival."""
    peak_to_mean: float
    """The busiest minute's rate over the mean, by whole minutes."""
    idle_share: float
    """The share of whole minutes without a request."""

    @property
    def smooth(self) -> bool:
        """Whether it is judged by the targets of smooth traffic."""
        return self.peak_to_mean <= SMOOTH_PEAK_TO_MEAN

    @property
    def mean_rps(self) -> float:
        """Requests a second."""
        return self.requests / self.duration_s if self.duration_s > 0 else 0.0

    def open(self) -> Trace:
        """Its requests."""
        return open_trace(self.path, duration_s=self.cut_s)


def find_windows(places: Sequence[Path], cut_s: float | None = None) -> list[Window]:
    """The windows in folders, or given as files, by name.

    Raises ValueError for a place that does not exist, no window at all, or two of one name, and TraceError
    for a file that is no trace.
    """
    files: list[Path] = []
    for place in places:
        if place.is_dir():
            files += sorted(f for f in place.iterdir() if f.is_file() and not f.name.startswith("."))
        elif place.is_file():
            files.append(place)
        else:
            raise ValueError(f"--windows = {place}: no such folder or file")
    if not files:
        raise ValueError(f"--windows = {', '.join(map(str, places))}: no file in it")
    found = {file.name.partition(".")[0]: file for file in files}
    if len(found) < len(files):
        twice = [file.name for file in files if file not in found.values()]
        raise ValueError(f"--windows: more than one window is named {', '.join(twice)}")
    return [_read(name, file, cut_s) for name, file in sorted(found.items())]


def _read(name: str, path: Path, cut_s: float | None) -> Window:
    arrivals = [chunk.arrival_s for chunk in open_trace(path, duration_s=cut_s).chunks()]
    requests, last = sum(map(len, arrivals)), float(arrivals[-1][-1])
    counts = np.zeros(int(last / MINUTE_S) + 1)
    for part in arrivals:
        counts += np.bincount((part / MINUTE_S).astype(np.int64), minlength=len(counts))
    # The last minute is not whole. A mean over it, and a peak within it, would be another ratio.
    whole = counts[: max(1, math.floor(last / MINUTE_S))]
    mean = float(whole.mean())
    ratio = float(whole.max()) / mean if mean > 0 else math.inf
    return Window(name, path, cut_s, requests, last, ratio, float((whole == 0).mean()))
