"""What a trace format is to the reader."""

from __future__ import annotations

from typing import Protocol

from loadtests.traces.errors import Place
from loadtests.traces.trace import Chunk
from loadtests.traces.values import Row


class Format(Protocol):
    """Reads lines of one format. Times of arrival are as the lines have them, in seconds."""

    @property
    def name(self) -> str:
        """As `open_trace` takes it."""
        ...

    @property
    def header_lines(self) -> int:
        """Lines before the first request, blank ones included."""
        ...

    @property
    def block_tokens(self) -> int:
        """Tokens of one prefix block; 0 where requests have none."""
        ...

    @property
    def disorder_s(self) -> float:
        """How much later than a line a request that arrived before it may stand."""
        ...

    @property
    def from_first(self) -> bool:
        """Whether the trace starts with its first request, not at a time 0 of its own."""
        ...

    def block(self, lines: bytes) -> Chunk:
        """Every request of a block of lines, at once.

        Raises:
            ValueError, OverflowError, Warning: if any line is not plain and right.
        """
        ...

    def line(self, line: str, place: Place) -> list[Row]:
        """The requests of one line: one, and for some formats none or several.

        Raises:
            TraceError: saying what is wrong with it.
        """
        ...
