"""Requests by arrival, in chunks, so that a trace of any length fits in memory."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from serve_app.settings.caller import LANES

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

CHUNK_REQUESTS = 16_384
MOST_TOKENS = 10_000_000
"""The most tokens of one prompt or one answer: ten times the longest context there is."""
STANDARD, BACKGROUND = LANES.index("standard"), LANES.index("background")
LONGEST_S = 10 * 365 * 86_400.0
"""Ten years, for times that count from the start of a trace. A Unix time in their place is 55 years."""
_SHOWN = 80  # characters of a wrong value that an error repeats


class TraceError(ValueError):
    """A trace that cannot be replayed. Names the file and, where there is one, line, key, value and bound."""


def shown(value: object) -> str:
    """A value as the file has it, cut to a readable length."""
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
    """At least 1, as `output_tokens`."""
    output_tokens: Ints
    block_starts: Ints = field(default_factory=_no_ints)
    """Request i begins with the prefix blocks `blocks[block_starts[i]:block_starts[i + 1]]`, so this has one
    element more than there are requests. Empty where a trace carries no blocks."""
    blocks: Ints = field(default_factory=_no_ints)
    """Ids of prefix blocks: equal ids are equal prefixes."""
    lanes: Ints = field(default_factory=_no_ints)
    """The place of each request's lane in `LANES`. Empty where all requests are `standard`."""
    adapters: Ints = field(default_factory=_no_ints)
    """The number of each request's LoRA adapter; 0 for the model itself. Empty where all requests are for the
    model itself."""

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
        """The share of the source that the latest `chunks()` has read, 0 to 1."""
        ...


class ArrayTrace:
    """Requests given as arrays, with one element per request, in any order.

    Arrivals are seconds since the start of the trace. An answer of 0 tokens becomes one of 1: its prefill
    made a token.

    Raises:
        TraceError: if there are no requests, the lengths differ, or a value is out of bounds.
    """

    block_tokens = 0

    def __init__(
        self, name: str, arrival_s: npt.ArrayLike, input_tokens: npt.ArrayLike, output_tokens: npt.ArrayLike
    ) -> None:
        self.name = name
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
        self._requests = sort_by_arrival(Chunk(arrivals, inputs.astype(np.int64), outputs.astype(np.int64)))
        self._read = 0

    def chunks(self) -> Iterator[Chunk]:
        self._read = 0
        for chunk in split([self._requests], CHUNK_REQUESTS):
            self._read += len(chunk)
            yield chunk

    def progress(self) -> float:
        return self._read / len(self._requests)


def empty_chunk() -> Chunk:
    """No requests."""
    return Chunk(np.empty(0), _no_ints(), _no_ints())


def part(chunk: Chunk, start: int, stop: int) -> Chunk:
    """The requests from `start` up to `stop`. Shares memory with `chunk`."""
    starts, blocks = chunk.block_starts, chunk.blocks
    if len(starts):
        starts = starts[start : stop + 1]
        blocks = blocks[starts[0] : starts[-1]]
        starts = starts - starts[0]
    at = slice(start, stop)
    return Chunk(
        chunk.arrival_s[at],
        chunk.input_tokens[at],
        chunk.output_tokens[at],
        starts,
        blocks,
        chunk.lanes[at],
        chunk.adapters[at],
    )


def split(chunks: Iterable[Chunk], most: int) -> Iterator[Chunk]:
    """The same requests in chunks of at most `most`, without empty ones."""
    for chunk in chunks:
        for start in range(0, len(chunk), most):
            yield chunk if len(chunk) <= most else part(chunk, start, min(start + most, len(chunk)))


def join(chunks: Sequence[Chunk]) -> Chunk:
    """All of them as one."""
    filled = [chunk for chunk in chunks if len(chunk)]
    if len(filled) <= 1:
        return filled[0] if filled else empty_chunk()
    starts, blocks = filled[0].block_starts, filled[0].blocks
    if len(starts):
        starts = starts_of(np.concatenate([np.diff(chunk.block_starts) for chunk in filled]))
        blocks = np.concatenate([chunk.blocks for chunk in filled])
    return Chunk(
        np.concatenate([chunk.arrival_s for chunk in filled]),
        np.concatenate([chunk.input_tokens for chunk in filled]),
        np.concatenate([chunk.output_tokens for chunk in filled]),
        starts,
        blocks,
        _join_column([chunk.lanes for chunk in filled], filled, STANDARD),
        _join_column([chunk.adapters for chunk in filled], filled, 0),
    )


def _join_column(columns: Sequence[Ints], chunks: Sequence[Chunk], usual: int) -> Ints:
    """A column of all requests of `chunks`. It is empty where every request has the `usual` value."""
    if not any(map(len, columns)):
        return _no_ints()
    return np.concatenate(
        [
            column if len(column) else np.full(len(of), usual)
            for column, of in zip(columns, chunks, strict=True)
        ]
    )


def take(chunk: Chunk, index: Ints) -> Chunk:
    """The requests at `index`, in its order; a request may be in it more than once."""
    starts, blocks = chunk.block_starts, chunk.blocks
    if len(starts):
        starts, blocks = _take_blocks(starts, blocks, np.diff(starts)[index], index)
    return Chunk(
        chunk.arrival_s[index],
        chunk.input_tokens[index],
        chunk.output_tokens[index],
        starts,
        blocks,
        chunk.lanes[index] if len(chunk.lanes) else chunk.lanes,
        chunk.adapters[index] if len(chunk.adapters) else chunk.adapters,
    )


def without_background(chunk: Chunk) -> Chunk:
    """The requests of all other lanes."""
    if not len(chunk.lanes):
        return chunk
    return take(chunk, np.flatnonzero(chunk.lanes != BACKGROUND))


def sort_by_arrival(chunk: Chunk) -> Chunk:
    """In order of arrival; requests that arrive together keep their order."""
    if np.all(chunk.arrival_s[1:] >= chunk.arrival_s[:-1]):
        return chunk
    return take(chunk, np.argsort(chunk.arrival_s, kind="stable"))


def starts_of(lengths: Ints) -> Ints:
    """Where runs of `lengths` begin if they lie one after another, and where the last ends."""
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def cap_inputs(chunks: Iterable[Chunk], most: int, block_tokens: int) -> Iterator[Chunk]:
    """The same requests with prompts of at most `most` tokens, and no blocks beyond the end of a prompt."""
    for chunk in chunks:
        inputs = np.minimum(chunk.input_tokens, most)
        starts, blocks = chunk.block_starts, chunk.blocks
        if len(starts):
            # The last block of a prompt may be incomplete.
            lengths = np.minimum(np.diff(starts), -(-inputs // block_tokens))
            starts, blocks = _take_blocks(starts, blocks, lengths, np.arange(len(chunk)))
        yield replace(chunk, input_tokens=inputs, block_starts=starts, blocks=blocks)


def _take_blocks(starts: Ints, blocks: Ints, lengths: Ints, index: Ints) -> tuple[Ints, Ints]:
    """The first `lengths[i]` blocks of request `index[i]`, and where they begin."""
    new_starts = starts_of(lengths)
    where = np.repeat(starts[:-1][index] - new_starts[:-1], lengths) + np.arange(new_starts[-1])
    return new_starts, blocks[where]
