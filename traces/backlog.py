"""A backlog of the lane `background` in addition to recorded traffic, such as a nightly batch job."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from traces.scale import Source, merge
from traces.trace import BACKGROUND, CHUNK_REQUESTS, Chunk, Trace, TraceError, shown, split, take

_DAY_S = 86_400.0
_OWN_BLOCKS = 1 << 50
"""Makes prefix blocks of the backlog differ from those of the traffic and of its copies."""
_FORM = re.compile(r"([0-9.]+)%@([0-9]{1,2}):([0-9]{2})-([0-9]{1,2}):([0-9]{2})")


@dataclass(frozen=True, slots=True)
class Backlog:
    """Work that is submitted at once, once a day, and should be done by a deadline.

    The days of a trace begin with the trace, and so do the clock times.
    """

    share: float
    """Its tokens over those of the traffic, above 0 and at most 1."""
    submit_s: float
    """When it is submitted, in seconds since the start of the day."""
    due_s: float
    """The deadline, in seconds after the submission; at most a day."""

    @classmethod
    def parse(cls, text: str) -> "Backlog":
        """Read a backlog such as `20%@22:00-06:00`.

        Raises TraceError with the text and its bounds.
        """
        found = _FORM.fullmatch(text.strip())
        try:
            percent, *times = (float(part) for part in found.groups()) if found else (0.0,)
        except ValueError:  # two points in a number
            percent, times = 0.0, []
        if not 0 < percent <= 100 or not times or max(times[::2]) > 23 or max(times[1::2]) > 59:
            raise TraceError(
                f"{shown(text)}: must be a share above 0 % and at most 100 %, and two times from 00:00 to "
                "23:59 since the start of the trace, such as 20%@22:00-06:00"
            )
        submit_s, until_s = 3600 * times[0] + 60 * times[1], 3600 * times[2] + 60 * times[3]
        return cls(percent / 100, submit_s, (until_s - submit_s) % _DAY_S or _DAY_S)

    def since(self, start_s: float) -> "Backlog":
        """Return the same backlog for the part of a trace that begins at `start_s`."""
        return replace(self, submit_s=(self.submit_s - start_s) % _DAY_S)

    def times(self, last_s: float) -> list[tuple[float, float]]:
        """Return each submission up to `last_s` and its deadline, in seconds since the start of the trace."""
        days = max(math.floor((last_s - self.submit_s) / _DAY_S) + 1, 0)
        return [(at, at + self.due_s) for at in (self.submit_s + _DAY_S * day for day in range(days))]


class WithBacklog:
    """A trace with a backlog. The backlog's requests are copies of requests of its day, at even intervals.

    The trace is read once more, and the backlog is kept in memory: 32 bytes a request.
    """

    def __init__(self, trace: Trace, backlog: Backlog) -> None:
        self.name = trace.name
        self.block_tokens = trace.block_tokens
        self._trace = trace
        self._backlog = backlog
        self._requests: list[Chunk] | None = None

    def progress(self) -> float:
        return self._trace.progress()

    def chunks(self) -> Iterator[Chunk]:
        if self._requests is None:
            self._requests = list(self._copies())
        own = Source(self._backlog.submit_s, iter(self._requests))
        return split(merge([Source(-math.inf, self._trace.chunks()), own]), CHUNK_REQUESTS)

    def _copies(self) -> Iterator[Chunk]:
        """Return the requests of the backlog by arrival.

        Raises TraceError if the trace ends before the first submission, and the errors of reading it.
        """
        backlog, seen, last_s = self._backlog, 0, 0.0
        found: list[Chunk] = []
        for chunk in self._trace.chunks():
            numbers = np.arange(seen, seen + len(chunk) + 1)
            chosen = np.flatnonzero(np.diff(np.floor(numbers * backlog.share)))
            seen, last_s = seen + len(chunk), float(chunk.arrival_s[-1])
            if len(chosen):
                found.append(take(chunk, chosen))
        submissions = backlog.times(last_s)
        if not submissions:
            raise TraceError(
                f"{self.name}: ends after {last_s:.0f} s, before its backlog is submitted at "
                f"{backlog.submit_s:.0f} s"
            )
        for chunk in found:
            day_s = np.floor(chunk.arrival_s / _DAY_S) * _DAY_S
            kept = np.flatnonzero(day_s + backlog.submit_s <= submissions[-1][0])
            if not len(kept):
                continue
            copies = take(chunk, kept)
            yield replace(
                copies,
                arrival_s=day_s[kept] + backlog.submit_s,
                blocks=copies.blocks ^ _OWN_BLOCKS,
                lanes=np.full(len(kept), BACKGROUND),
            )
