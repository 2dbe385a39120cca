"""The age of reports, independent of their senders' clocks. Pure."""

from collections.abc import Mapping
from math import inf


class Sightings:
    """Remembers when the newest report of each source was first seen.

    Clocks of nodes may differ by seconds. So a time stamp only shows whether a report is a new one, and its
    age counts from when it was first seen. The first report of a source may be old, as after a restart, so
    its stamp is believed. If the sender's clock was wrong, its next report, a second later, corrects the age.

    Args:
        believed: Whether the first report of a source is as old as its stamp says. If not, it counts as new.
    """

    def __init__(self, *, believed: bool = True) -> None:
        self._believed = believed
        self._seen: dict[str, tuple[float, float]] = {}
        """By source: the stamp of its newest report, and when that was first seen."""
        self._last = -inf
        self._set_back_s = 0.0

    def ages(self, stamps: Mapping[str, float], now: float) -> dict[str, float]:
        """Return the age in seconds of the newest report of each source, given their finite time stamps.

        `now` is Unix time in seconds. If the clock is set back, no report becomes younger. Otherwise `now`
        minus the age of a report is constant until the next report.
        """
        self._set_back_s += max(0.0, self._last - now)
        self._last = now
        clock = now + self._set_back_s
        before, seen, ages = self._seen, {}, {}
        for source, stamp in stamps.items():
            known = before.get(source)
            if known is None:
                known = stamp, (clock - max(0.0, now - stamp) if self._believed else clock)
            elif known[0] != stamp:
                known = stamp, clock
            seen[source] = known
            ages[source] = clock - known[1]
        self._seen = seen
        return ages
