"""When open batches will be done at the present rate. Pure."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

_WINDOW_S = 300.0
"""The rate is measured over so many seconds."""
_LEAST_S = 20.0
"""A rate over a shorter time says nothing yet."""


@dataclass(frozen=True, slots=True)
class Remaining:
    """What is left of one batch."""

    batch_id: str
    lines: int
    due: float
    """The end of its completion window, in Unix time."""


class Rate:
    """The lines of one model that were answered per second, over the last five minutes with work."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()
        self._total = 0

    def note(self, lines: int, now: float) -> None:
        """Note answered lines; 0 while batches are open and none was answered."""
        self._total += lines
        self._points.append((now, self._total))
        while now - self._points[0][0] > _WINDOW_S:
            self._points.popleft()

    def stop(self) -> None:
        """Forget the rate: no batch is open, so time without answers says nothing."""
        self._points.clear()

    @property
    def lines_per_s(self) -> float | None:
        """The rate; None before it is known."""
        if not self._points or (over_s := self._points[-1][0] - self._points[0][0]) < _LEAST_S:
            return None
        return (self._points[-1][1] - self._points[0][1]) / over_s


def late_s(batches: Iterable[Remaining], lines_per_s: float | None, now: float) -> dict[str, float]:
    """Return by how many seconds each batch would miss its window, of those that would.

    The batch with the earliest end goes first. Without any answer in the time measured, the result is
    infinite. Without a known rate, no batch counts as late before its end.
    """
    found, lines = {}, 0
    for batch in sorted(batches, key=lambda batch: batch.due):
        lines += batch.lines
        needed_s = 0.0
        if lines_per_s is not None:
            needed_s = lines / lines_per_s if lines_per_s > 0 else float("inf")
        if lines and now + needed_s > batch.due:
            found[batch.batch_id] = now + needed_s - batch.due
    return found
