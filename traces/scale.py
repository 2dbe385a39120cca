"""Traces put in order, merged, cut, stretched, multiplied and thinned, chunk by chunk in bounded memory."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from traces.trace import (
    CHUNK_REQUESTS,
    Chunk,
    Ints,
    TraceError,
    empty_chunk,
    join,
    part,
    sort_by_arrival,
    split,
    take,
)

MOST_WAITING = 2_000_000
"""Requests that may wait to be put in order: 48 MB, or 33,000 requests/s over a minute."""
JITTER_S = 2.0
"""A copy of a request arrives up to this much before or after it: enough not to be its twin, and little
beside the minute over which latencies are judged."""
_COPY_BITS = 40


def in_order(chunks: Iterable[Chunk], disorder_s: float, name: str) -> Iterator[Chunk]:
    """The same requests by arrival, if none is more than `disorder_s` older than any before it.

    Raises TraceError, with `name`, if more than `MOST_WAITING` arrive within `disorder_s`.
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
        kept = sort_by_arrival(join([kept, *fresh]))
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
    rest = sort_by_arrival(join([kept, *fresh]))
    if len(rest):
        yield rest


@dataclass(slots=True)
class Source:
    """Requests in order, none of which arrived before `not_before_s`. Read only once they are needed."""

    not_before_s: float
    chunks: Iterator[Chunk]
    head: Chunk = field(default_factory=empty_chunk)

    def fill(self) -> bool:
        """Read on if no request is at hand. False if there is none left."""
        if not len(self.head):
            self.head = next(self.chunks, self.head)
        return len(self.head) > 0

    def take_until(self, time_s: float) -> Chunk:
        """The requests at hand that arrived by then."""
        due = int(np.searchsorted(self.head.arrival_s, time_s, side="right"))
        taken, self.head = part(self.head, 0, due), part(self.head, due, len(self.head))
        return taken


def merge(sources: Sequence[Source]) -> Iterator[Chunk]:
    """The requests of all `sources` by arrival; of those that arrive together, the first source's first.

    Memory is that of the sources that overlap in time, however many there are.
    """
    waiting = sorted(sources, key=lambda source: source.not_before_s, reverse=True)
    begun: list[Source] = []
    while waiting or begun:
        begun = [source for source in begun if source.fill()]
        # The next request of a source may come at the end of its head, so nothing later may go out yet.
        until = min((float(source.head.arrival_s[-1]) for source in begun), default=np.inf)
        if waiting and waiting[-1].not_before_s <= until:
            begun.append(waiting.pop())
            continue
        together = join([source.take_until(until) for source in begun])
        if len(together):
            yield sort_by_arrival(together)


def from_zero(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """The first request arrives at 0. Times are rounded to the microsecond that Unix times carry."""
    start_s: float | None = None
    for chunk in chunks:
        start_s = float(chunk.arrival_s[0]) if start_s is None else start_s
        yield replace(chunk, arrival_s=np.round(chunk.arrival_s - start_s, 6))


def window(chunks: Iterable[Chunk], start_s: float, duration_s: float | None) -> Iterator[Chunk]:
    """Arrivals from `start_s` on, for `duration_s` seconds or to the end; `start_s` becomes 0."""
    end_s = math.inf if duration_s is None else start_s + duration_s
    for chunk in chunks:
        first, end = (int(i) for i in np.searchsorted(chunk.arrival_s, (start_s, end_s)))
        if first < end:
            cut = part(chunk, first, end)
            yield replace(cut, arrival_s=cut.arrival_s - start_s) if start_s else cut
        if end < len(chunk):
            return


def stretch(chunks: Iterable[Chunk], time: float) -> Iterator[Chunk]:
    """The same requests over `time` times as long."""
    for chunk in chunks:
        yield replace(chunk, arrival_s=chunk.arrival_s * time)


def at_rate(
    chunks: Iterable[Chunk], rate: float, end_s: float | None, seed: int, name: str
) -> Iterator[Chunk]:
    """`rate` times as many requests over the same time.

    At a rate of 2.3 each request comes twice, and a third time with probability 0.3. The first keeps its
    time; copies arrive up to `JITTER_S` away from it, between 0 and `end_s`, the end of the trace where it is
    known. Copies have prefix blocks of their own, as if other users sent them. The k-th copies share with
    each other what the originals share, so the share of prompts that a prefix cache holds stays as it was.

    Equal seeds give equal requests, however they come in chunks.

    Raises TraceError, with `name`, if more requests arrive within the jitter than can be put in order.
    """
    more_draws, jitter_draws = np.random.default_rng(seed).spawn(2)
    whole, rest = int(rate), rate - int(rate)

    def copies() -> Iterator[Chunk]:
        # A piece of a chunk makes at most a chunk, so that memory does not grow with the rate.
        for chunk in split(chunks, max(1, int(CHUNK_REQUESTS / (whole + 1)))):
            times = whole + (more_draws.random(len(chunk)) < rest).astype(np.int64)
            index = np.repeat(np.arange(len(chunk)), times)
            if len(index):
                copy = np.arange(len(index)) - np.repeat(np.cumsum(times) - times, times)
                yield _move(take(chunk, index), copy, jitter_draws, end_s)

    if whole < 1 or rate == 1.0:
        return copies()  # no request changes its time
    return in_order(copies(), 2 * JITTER_S, f"{name} at rate = {rate:g}")


def _move(chunk: Chunk, copy: Ints, draws: np.random.Generator, end_s: float | None) -> Chunk:
    moves = copy > 0
    arrival_s = chunk.arrival_s.copy()
    arrival_s[moves] += draws.uniform(-JITTER_S, JITTER_S, int(moves.sum()))
    # Folded back at the ends, where cutting would pile them up.
    arrival_s = np.abs(arrival_s)
    if end_s is not None:
        back_s = np.clip(2 * end_s - arrival_s, 0.0, np.nextafter(end_s, 0.0))
        arrival_s = np.where(moves & (arrival_s >= end_s), back_s, arrival_s)
    starts, blocks = chunk.block_starts, chunk.blocks
    if len(starts):
        blocks = blocks ^ np.repeat(copy << _COPY_BITS, np.diff(starts))
    return replace(chunk, arrival_s=arrival_s, blocks=blocks)
