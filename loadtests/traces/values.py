"""What a value of a trace may be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadtests.traces.chunks import empty_chunk, starts_of
from loadtests.traces.errors import Place, shown
from loadtests.traces.trace import Chunk

MOST_TOKENS = 10_000_000
"""Of one prompt or one answer: ten times the longest context there is."""
LONGEST_S = 10 * 365 * 86_400.0
"""A trace that counts from its start: ten years. A Unix time in its place is 55."""
LATEST_UNIX_S = 4_102_444_800.0
"""The year 2100."""


@dataclass(frozen=True, slots=True)
class Row:
    """One request of a trace, as a line has it. `arrival_s` counts from wherever the trace does."""

    arrival_s: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


def number(place: Place, key: str, given: object, least: float, most: float) -> float:
    """A value as a number within its bounds.

    Args:
        place: Where it stands.
        key: What it is called there.
        given: A number, or the text of one.
        least: The smallest it may be.
        most: The largest.

    Raises:
        TraceError: naming all of these.
    """
    value = math.nan
    if isinstance(given, str) and "_" not in given:
        try:
            value = float(given)
        except ValueError:
            raise place.error(f"{key} = {shown(given)}: not a number") from None
    elif isinstance(given, int | float) and not isinstance(given, bool):
        value = given
    else:
        raise place.error(f"{key} = {shown(given)}: not a number")
    if not least <= value <= most:
        raise place.error(f"{key} = {shown(given)}: must be from {least:.12g} to {most:.12g}")
    return value


def count(place: Place, key: str, given: object, least: int, most: int = MOST_TOKENS) -> int:
    """The same for a whole number.

    Raises:
        TraceError: also where it has a fraction.
    """
    value = number(place, key, given, least, most)
    if value != int(value):
        raise place.error(f"{key} = {shown(given)}: must be a whole number")
    return int(value)


def chunk_of_columns(
    arrival_s: npt.ArrayLike, inputs: npt.ArrayLike, outputs: npt.ArrayLike, latest_s: float
) -> Chunk:
    """A chunk of columns read at once. An answer of 0 tokens becomes one of 1: its prefill made a token.

    Raises:
        ValueError: if any value is out of bounds. Which one, reading line by line tells.
    """
    arrivals = np.asarray(arrival_s, dtype=np.float64)
    input_tokens, output_tokens = _whole(inputs), _whole(outputs)
    # A comparison with NaN is false.
    if not (
        np.all((arrivals >= 0.0) & (arrivals <= latest_s))
        and np.all((input_tokens >= 1) & (input_tokens <= MOST_TOKENS))
        and np.all((output_tokens >= 0) & (output_tokens <= MOST_TOKENS))
    ):
        raise ValueError("a value is out of bounds")
    return Chunk(arrivals, input_tokens, np.maximum(output_tokens, 1))


def chunk_of_rows(rows: Sequence[Row], *, with_blocks: bool) -> Chunk:
    """A chunk of requests that were read one by one."""
    if not rows:
        return empty_chunk()
    chunk = Chunk(
        np.array([row.arrival_s for row in rows]),
        np.array([row.input_tokens for row in rows], dtype=np.int64),
        np.array([max(1, row.output_tokens) for row in rows], dtype=np.int64),
    )
    return blocked(chunk, [row.blocks for row in rows]) if with_blocks else chunk


def blocked(chunk: Chunk, blocks: Sequence[Sequence[int]]) -> Chunk:
    """`chunk` with the prefix blocks of each of its requests."""
    lengths = np.array([len(ids) for ids in blocks], dtype=np.int64)
    flat = np.array([block for ids in blocks for block in ids], dtype=np.int64)
    return Chunk(chunk.arrival_s, chunk.input_tokens, chunk.output_tokens, starts_of(lengths), flat)


def _whole(values: npt.ArrayLike) -> npt.NDArray[np.int64]:
    given = np.asarray(values)
    if given.dtype == np.int64:
        return given
    with np.errstate(invalid="ignore"):  # a NaN becomes some integer, which it does not equal
        whole = given.astype(np.int64)
    if not np.array_equal(whole, given):
        raise ValueError("a value is not a whole number")
    return whole
