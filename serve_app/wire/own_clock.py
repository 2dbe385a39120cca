"""Convert time stamps of other nodes to the reader's clock, and keep that clock from steps."""

import time
from collections.abc import Callable, Mapping
from math import inf
from typing import Any


class OwnClock:
    """Remembers when the reader first saw each time stamp.

    The clocks of two nodes may differ by a minute. So a stamp mainly shows whether its document has changed,
    and its age counts from the first reading that had it. A new stamp is never older than the previous
    reading, which did not have the stamp. Only a stamp of the first reading is as old as it says.
    """

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, tuple[float, float]]] = {}
        """By kind and source: the stamp, and when it was set, on the reader's clock."""
        self._read_at: dict[str, float] = {}
        self._last, self._set_back_s = -inf, 0.0

    def times(
        self,
        kind: str,
        stamps: Mapping[str, float],
        now: float,
        unix_now: float,
        *,
        believed: bool = True,
    ) -> dict[str, float]:
        """Return when each source set its stamp, on the clock that says `now`.

        Args:
            kind: The kind of document. All stamps of a kind are read together.
            stamps: Unix times in seconds, on the clocks of the sources.
            now: The reader's clock, in seconds.
            unix_now: The same moment in Unix time.
            believed: Whether a stamp of the first reading is as old as it says. If not, it counts as new.
        """
        before, seen = self._read_at.get(kind, -inf if believed else now), self._seen.get(kind, {})
        found = {}
        for source, stamp in stamps.items():
            known = seen.get(source)
            if known is None or known[0] != stamp:
                known = stamp, min(now, max(now - max(0.0, unix_now - stamp), before))
            found[source] = known
        self._seen[kind], self._read_at[kind] = found, now
        return {source: at for source, (_, at) in found.items()}

    def ages(self, kind: str, stamps: Mapping[str, float], unix_now: float) -> dict[str, float]:
        """Return the age in seconds of the newest report of each source.

        Reports come once a second. So a new one counts from when it was first seen. The first report of a
        source may be old, as after a restart, so its stamp is believed. If this machine's clock is set back,
        no report becomes younger. Otherwise `unix_now` minus the age is constant until the next report.
        """
        self._set_back_s += max(0.0, self._last - unix_now)
        self._last = unix_now
        now = unix_now + self._set_back_s
        before, seen, ages = self._seen.get(kind, {}), {}, {}
        for source, stamp in stamps.items():
            known = before.get(source)
            if known is None:
                known = stamp, now - max(0.0, unix_now - stamp)
            elif known[0] != stamp:
                known = stamp, now
            seen[source] = known
            ages[source] = now - known[1]
        self._seen[kind] = seen
        return ages

    def phases(
        self, deployment: str, documents: Mapping[str, Mapping[str, Any]], now: float, unix_now: float
    ) -> dict[str, dict[str, Any]]:
        """Return phase documents with `since` and `until` on the clock that says `now`."""
        stamps = {replica: float(document["since"]) for replica, document in documents.items()}
        moved = {}
        for replica, since in self.times(deployment, stamps, now, unix_now).items():
            document = moved[replica] = {**documents[replica], "since": since}
            if "until" in document:
                document["until"] += since - stamps[replica]
        return moved


_MOST_SLEW = 0.1
"""Durations are at most this share too long or too short while a step is taken over."""
_JUMP_S = 7200.0
"""A larger step is taken over at once: the clock was wrong before, or the machine was suspended."""


class SteadyTime:
    """Unix time for durations: a step of the machine's clock is taken over slowly. Use it in one thread."""

    def __init__(
        self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._now, self._last = wall(), monotonic()

    def __call__(self) -> float:
        """Return the Unix time in seconds."""
        wall, last, self._last = self._wall(), self._last, self._monotonic()
        passed = self._last - last
        step = wall - self._now - passed
        slewed = max(-_MOST_SLEW * passed, min(step, _MOST_SLEW * passed))
        self._now += passed + (slewed if abs(step) < _JUMP_S else step)
        return self._now
