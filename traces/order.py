"""Requests put in order of arrival, of one file or of several, in bounded memory."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from traces.chunks import empty_chunk, in_arrival_order, joined, part
from traces.trace import CHUNK_REQUESTS, Chunk, TraceError

MOST_WAITING = 2_000_000
"""Requests kept until none can come that arrived before them: 48 MB, 33,000 requests/s over a minute."""


def in_order(chunks: Iterable[Chunk], disorder_s: float, name: str) -> Iterator[Chunk]:
    """The same requests by arrival.

    Args:
        chunks: Requests that are at most `disorder_s` seconds older than any before them.
        disorder_s: How much is kept.
        name: Of their source, for the error.

    Raises:
        TraceError: if more than `MOST_WAITING` arrive within `disorder_s`.
    """
    kept = empty_chunk()
    fresh: list[Chunk] = []
    fresh_requests = 0
    newest = -np.inf
    for chunk in chunks:
        fresh.append(chunk)
        fresh_requests += len(chunk)
        newest = max(newest, float(chunk.arrival_s.max()))
        # As many new ones as are kept, or each request would be moved at each chunk.
        if fresh_requests < max(CHUNK_REQUESTS, len(kept)):
            continue
        kept = in_arrival_order(joined([kept, *fresh]))
        fresh, fresh_requests = [], 0
        due = int(np.searchsorted(kept.arrival_s, newest - disorder_s))
        if due:
            yield part(kept, 0, due)
            kept = part(kept, due, len(kept))
        if len(kept) > MOST_WAITING:
            raise TraceError(
                f"{name}: more than {MOST_WAITING} requests arrive within {disorder_s:g} s of "
                f"{newest - disorder_s:.12g} s; that many cannot be put in order"
            )
    rest = in_arrival_order(joined([kept, *fresh]))
    if len(rest):
        yield rest


@dataclass(slots=True)
class Source:
    """Requests in order, none of which arrived before `not_before_s`. Not begun until they are needed."""

    not_before_s: float
    chunks: Iterator[Chunk]
    head: Chunk = field(default_factory=empty_chunk)

    def fill(self) -> bool:
        """Have a request at hand. False if there is none left."""
        if not len(self.head):
            self.head = next(self.chunks, self.head)
        return len(self.head) > 0

    def take_until(self, time_s: float) -> Chunk:
        """The requests at hand that arrived by then."""
        due = int(np.searchsorted(self.head.arrival_s, time_s, side="right"))
        taken, self.head = part(self.head, 0, due), part(self.head, due, len(self.head))
        return taken


def merged(sources: Sequence[Source]) -> Iterator[Chunk]:
    """The requests of all `sources` by arrival. Of those that arrive together, the first source's first.

    Memory is that of the sources that overlap in time, however many there are.
    """
    waiting = sorted(sources, key=lambda source: source.not_before_s, reverse=True)
    begun: list[Source] = []
    while waiting or begun:
        begun = [source for source in begun if source.fill()]
        # What is at hand of each source reaches to the end of its head; beyond the first such end another
        # request of that source may come.
        until = min((float(source.head.arrival_s[-1]) for source in begun), default=np.inf)
        if waiting and waiting[-1].not_before_s <= until:
            begun.append(waiting.pop())
            continue
        together = joined([source.take_until(until) for source in begun])
        if len(together):
            yield in_arrival_order(together)
