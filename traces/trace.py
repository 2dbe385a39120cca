"""A trace as the replay takes it: requests by arrival, in chunks, so that any length fits in memory."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

CHUNK_REQUESTS = 16_384
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
