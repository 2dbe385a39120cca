"""Requests by arrival, in chunks, so that a trace of any length fits in memory."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

CHUNK_REQUESTS = 16_384
MOST_TOKENS = 10_000_000
"""The most tokens of one prompt or one answer: ten times the longest context there is."""
LONGEST_S = 10 * 365 * 86_400.0
"""Ten years, for times that count from the start of a trace. A Unix time in their place is 55 years."""
_SHOWN = 80  # characters of a wrong value that an error repeats


class TraceError(ValueError):
    """A trace that cannot be replayed. Names the file and, where there is one, line, key, value and bound."""


def shown(value: object) -> str:
    """A value as it stands in the file, cut to a readable length."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _no_ints() -> Ints:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive requests: one array element each, in order of arrival."""

    arrival_s: Floats
    """Seconds since the start of the trace; never falling, across chunks too."""
    input_tokens: Ints
    """At least 1."""
    output_tokens: Ints
    """At least 1."""
    block_starts: Ints = field(default_factory=_no_ints)
    """Where a trace carries prefix blocks: request i has `blocks[block_starts[i]:block_starts[i + 1]]`, so
    one element more than requests; else empty."""
    blocks: Ints = field(default_factory=_no_ints)
    """Ids of the blocks a prompt begins with, in its order; equal ids are equal prefixes."""

    def __len__(self) -> int:
        return len(self.arrival_s)


class Trace(Protocol):
    """A source of requests that can be read again from the start."""

    @property
    def name(self) -> str:
        """For reports."""
        ...

    @property
    def block_tokens(self) -> int:
        """Tokens of one prefix block; 0 where the trace carries none."""
        ...

    def chunks(self) -> Iterator[Chunk]:
        """The requests, from the first. Chunks have at most `CHUNK_REQUESTS`, and none is empty.

        Raises TraceError with file, line, value and bound, for a line that is not a request.
        """
        ...

    def progress(self) -> float:
        """The share of the source read by the latest `chunks()`, 0 to 1."""
        ...


def empty_chunk() -> Chunk:
    """No requests."""
    return Chunk(np.empty(0), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def part(chunk: Chunk, start: int, stop: int) -> Chunk:
    """The requests from `start` up to `stop`. Shares memory with `chunk`."""
    starts = chunk.block_starts
    blocks = chunk.blocks
    if len(starts):
        starts = starts[start : stop + 1]
        blocks = blocks[starts[0] : starts[-1]]
        starts = starts - starts[0]
    return Chunk(
        chunk.arrival_s[start:stop],
        chunk.input_tokens[start:stop],
        chunk.output_tokens[start:stop],
        starts,
        blocks,
    )


def pieces(chunks: Iterable[Chunk], most: int) -> Iterator[Chunk]:
    """The same requests in chunks of at most `most`, without empty ones."""
    for chunk in chunks:
        if 0 < len(chunk) <= most:
            yield chunk
            continue
        for start in range(0, len(chunk), most):
            yield part(chunk, start, min(start + most, len(chunk)))


def joined(chunks: Sequence[Chunk]) -> Chunk:
    """All of them as one."""
    filled = [chunk for chunk in chunks if len(chunk)]
    if len(filled) <= 1:
        return filled[0] if filled else empty_chunk()
    starts, blocks = filled[0].block_starts, filled[0].blocks
    if len(starts):
        lengths = np.concatenate([np.diff(chunk.block_starts) for chunk in filled])
        starts = starts_of(lengths)
        blocks = np.concatenate([chunk.blocks for chunk in filled])
    return Chunk(
        np.concatenate([chunk.arrival_s for chunk in filled]),
        np.concatenate([chunk.input_tokens for chunk in filled]),
        np.concatenate([chunk.output_tokens for chunk in filled]),
        starts,
        blocks,
    )


def picked(chunk: Chunk, index: Ints) -> Chunk:
    """The requests at `index`, in its order; a request may be in it more than once."""
    starts, blocks = chunk.block_starts, chunk.blocks
    if len(starts):
        starts, blocks = _picked_blocks(starts, blocks, np.diff(starts)[index], index)
    return Chunk(
        chunk.arrival_s[index], chunk.input_tokens[index], chunk.output_tokens[index], starts, blocks
    )


def in_arrival_order(chunk: Chunk) -> Chunk:
    """Sorted by arrival; requests that arrive together keep their order."""
    arrival_s = chunk.arrival_s
    if np.all(arrival_s[1:] >= arrival_s[:-1]):
        return chunk
    return picked(chunk, np.argsort(arrival_s, kind="stable"))


def with_inputs(chunk: Chunk, input_tokens: Ints, block_tokens: int) -> Chunk:
    """The same requests with other prompt lengths; blocks beyond the end of a prompt are left out."""
    starts, blocks = chunk.block_starts, chunk.blocks
    if len(starts):
        # The last block of a prompt may be begun and not full.
        lengths = np.minimum(np.diff(starts), -(-input_tokens // block_tokens))
        starts, blocks = _picked_blocks(starts, blocks, lengths, np.arange(len(chunk)))
    return Chunk(chunk.arrival_s, input_tokens, chunk.output_tokens, starts, blocks)


def starts_of(lengths: Ints) -> Ints:
    """Where each run begins if runs of `lengths` lie one after another, and where the last ends."""
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def _picked_blocks(starts: Ints, blocks: Ints, lengths: Ints, index: Ints) -> tuple[Ints, Ints]:
    """The first `lengths[i]` blocks of request `index[i]`, and where they begin."""
    new_starts = starts_of(lengths)
    where = np.repeat(starts[:-1][index] - new_starts[:-1], lengths) + np.arange(new_starts[-1])
    return new_starts, blocks[where]


class ArrayTrace:
    """Requests given as arrays, of one element a request.

    Args:
        name: For reports.
        arrival_s: Seconds since the start of the trace, in any order.
        input_tokens: Of each prompt.
        output_tokens: Of each answer. 0 counts as 1: its prefill makes a token.

    Raises:
        TraceError: if there are none, their numbers differ, or a value is out of bounds.
    """

    block_tokens = 0

    def __init__(
        self, name: str, arrival_s: npt.ArrayLike, input_tokens: npt.ArrayLike, output_tokens: npt.ArrayLike
    ) -> None:
        self._name = name
        columns = {
            "arrival_s": (np.asarray(arrival_s, dtype=np.float64), 0.0, LONGEST_S),
            "input_tokens": (np.asarray(input_tokens), 1, MOST_TOKENS),
            "output_tokens": (np.asarray(output_tokens), 0, MOST_TOKENS),
        }
        lengths = {key: column.shape for key, (column, _, _) in columns.items()}
        if any(len(shape) != 1 or shape != lengths["arrival_s"] for shape in lengths.values()):
            raise TraceError(f"{name}: must be three arrays of one length, and have {lengths}")
        if lengths["arrival_s"] == (0,):
            raise TraceError(f"{name}: has no requests")
        for key, (column, least, most) in columns.items():
            wrong = ~((column >= least) & (column <= most))
            if key != "arrival_s":
                wrong |= column != np.floor(column)
            if np.any(wrong):
                at = int(np.argmax(wrong))
                kind = "" if key == "arrival_s" else "a whole number "
                raise TraceError(
                    f"{name}: {key}[{at}] = {column[at]}: must be {kind}from {least:.12g} to {most:.12g}"
                )
        arrivals, inputs, outputs = (column for column, _, _ in columns.values())
        outputs = np.maximum(outputs, 1)
        chunk = Chunk(arrivals.astype(np.float64), inputs.astype(np.int64), outputs.astype(np.int64))
        self._requests = in_arrival_order(chunk)
        self._given = 0

    @property
    def name(self) -> str:
        """See `Trace`."""
        return self._name

    def chunks(self) -> Iterator[Chunk]:
        """See `Trace`."""
        for start in range(0, len(self._requests), CHUNK_REQUESTS):
            self._given = min(start + CHUNK_REQUESTS, len(self._requests))
            yield part(self._requests, start, self._given)

    def progress(self) -> float:
        """See `Trace`."""
        return self._given / len(self._requests)
