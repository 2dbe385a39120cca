"""Cutting and joining chunks, with the prefix blocks of their requests where there are any."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from traces.trace import Chunk, Ints


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
