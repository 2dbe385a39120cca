"""When open batches will be done at the present rate. Pure."""

from collections import deque
from collections.abc import Iterable

_WINDOW_S = 300.0
"""The rate is measured over so many seconds."""
_LEAST_S = 20.0
"""A rate over a shorter time says nothing yet."""


class Rate:
    """The lines of one model that were answered per second, over the last five minutes with work."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()
        self._total = 0

    def add(self, lines: int) -> None:
        """Count answered lines."""
        self._total += lines

    def note(self, now: float) -> None:
        """Note the time, every second while batches are open."""
        self._points.append((now, self._total))
        while now - self._points[0][0] > _WINDOW_S:
            self._points.popleft()

    @property
    def lines_per_s(self) -> float | None:
        """The rate; None before it is known."""
        if not self._points or (over_s := self._points[-1][0] - self._points[0][0]) < _LEAST_S:
            return None
        return (self._points[-1][1] - self._points[0][1]) / over_s


def late_s(due: Iterable[tuple[int, float]], lines_per_s: float | None, now: float) -> list[float]:
    """Return by how many seconds batches would miss their windows, of those that would.

    Without any answer in the time measured, the result is infinite. Without a known rate, no batch counts as
    late before its end.

    Args:
        due: For each batch, its lines without an answer and the end of its window, the earliest end first.
        lines_per_s: The rate of answers.
        now: Unix time, as the ends.
    """
    found, lines = [], 0
    for of_batch, end in due:
        lines += of_batch
        needed_s = 0.0
        if lines_per_s is not None:
            needed_s = lines / lines_per_s if lines_per_s > 0 else float("inf")
        if lines and now + needed_s > end:
            found.append(now + needed_s - end)
    return found
