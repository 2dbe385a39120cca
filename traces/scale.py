"""A trace cut, stretched, multiplied and thinned, chunk by chunk."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from traces.chunks import part, picked, pieces, with_inputs
from traces.order import in_order
from traces.trace import CHUNK_REQUESTS, Chunk, Ints

JITTER_S = 2.0
"""A copy of a request arrives up to this much before or after it: enough not to be its twin, and little
beside the minute over which latencies are judged."""

_COPY_BITS = 40


def from_zero(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """Shifted so that the first request arrives at 0; to the microsecond, which is what Unix times carry."""
    start_s: float | None = None
    for chunk in chunks:
        if start_s is None:
            start_s = float(chunk.arrival_s[0])
        yield replace(chunk, arrival_s=np.round(chunk.arrival_s - start_s, 6))


def window(chunks: Iterable[Chunk], start_s: float, duration_s: float | None) -> Iterator[Chunk]:
    """What arrives from `start_s` on, for `duration_s` seconds or to the end; `start_s` becomes 0."""
    end_s = math.inf if duration_s is None else start_s + duration_s
    for chunk in chunks:
        first, end = (int(i) for i in np.searchsorted(chunk.arrival_s, (start_s, end_s)))
        if first < end:
            cut = part(chunk, first, end)
            yield replace(cut, arrival_s=cut.arrival_s - start_s) if start_s else cut
        if end < len(chunk):
            return


def stretched(chunks: Iterable[Chunk], time: float) -> Iterator[Chunk]:
    """Over `time` times as long."""
    for chunk in chunks:
        yield replace(chunk, arrival_s=chunk.arrival_s * time)


def at_rate(
    chunks: Iterable[Chunk], rate: float, end_s: float | None, seed: int, name: str
) -> Iterator[Chunk]:
    """`rate` times as many requests over the same time.

    Each request is taken as often as `rate` has whole ones, and once more with the rest as probability. The
    first of them keeps its time; copies arrive up to `JITTER_S` away from it, between 0 and `end_s`. Copies
    have prefix blocks of their own, as if other users sent them: the k-th copies share with each other what
    the originals share, so the share of prompts that a prefix cache holds stays as it was.

    Args:
        chunks: Requests by arrival.
        rate: Above 0.
        end_s: Where the trace ends, if that is known.
        seed: Equal seeds give equal requests, however they come in chunks.
        name: Of the trace, for an error.

    Raises:
        TraceError: if more requests arrive within the jitter than can be put in order.
    """
    more_draws, jitter_draws = np.random.default_rng(seed).spawn(2)
    whole, rest = int(rate), rate - int(rate)

    def copies() -> Iterator[Chunk]:
        # No more than a chunk comes of a piece, so that memory does not grow with the rate.
        for chunk in pieces(chunks, max(1, int(CHUNK_REQUESTS / (whole + 1)))):
            times = whole + (more_draws.random(len(chunk)) < rest).astype(np.int64)
            index = np.repeat(np.arange(len(chunk)), times)
            if not len(index):
                continue
            copy = np.arange(len(index)) - np.repeat(np.cumsum(times) - times, times)
            yield _moved(picked(chunk, index), copy, jitter_draws, end_s)

    if whole < 1 or rate == 1.0:
        return copies()  # no request changes its time
    return in_order(copies(), 2 * JITTER_S, f"{name} at rate = {rate:g}")


def capped(chunks: Iterable[Chunk], max_input_tokens: int, block_tokens: int) -> Iterator[Chunk]:
    """Prompts cut to `max_input_tokens`."""
    for chunk in chunks:
        yield with_inputs(chunk, np.minimum(chunk.input_tokens, max_input_tokens), block_tokens)


def _moved(chunk: Chunk, copy: Ints, draws: np.random.Generator, end_s: float | None) -> Chunk:
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
    return Chunk(arrival_s, chunk.input_tokens, chunk.output_tokens, starts, blocks)
