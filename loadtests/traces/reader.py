"""The requests of one file, in the order of its lines."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from loadtests.traces.errors import TraceError
from loadtests.traces.formats import Format
from loadtests.traces.lines import LineFile
from loadtests.traces.trace import Chunk
from loadtests.traces.values import Row, chunk_of_rows

IRREGULAR = (ValueError, OverflowError, Warning)
"""What reading a whole block raises where it needs to be read line by line."""


def read(file: LineFile, layout: Format) -> Iterator[Chunk]:
    """Chunks of requests as they stand in `file`, a block of lines each.

    Raises:
        TraceError: for a line that is wrong, or that stands later than the format's `disorder_s` allows.
    """
    newest = -np.inf
    for first, block in file.blocks(skip=layout.header_lines):
        try:
            if b"\0" in block:
                raise ValueError("NumPy takes a zero byte for the end of a string")
            chunk = layout.block(block)
        except TraceError:
            raise
        except IRREGULAR:
            chunk = chunk_of_rows(
                [row for _, row in _rows(file, layout, first, block)], with_blocks=layout.block_tokens > 0
            )
        if not len(chunk):
            continue
        before = np.maximum(np.maximum.accumulate(chunk.arrival_s), newest)
        if np.any(before - chunk.arrival_s > layout.disorder_s):
            raise _too_late(file, layout, first, block, newest)
        newest = float(before[-1])
        yield chunk


def _rows(file: LineFile, layout: Format, first: int, block: bytes) -> Iterator[tuple[int, Row]]:
    for number, text in file.text_lines(first, block):
        for row in layout.line(text, file.place(number)):
            yield number, row


def _too_late(file: LineFile, layout: Format, first: int, block: bytes, newest: float) -> TraceError:
    for number, row in _rows(file, layout, first, block):
        late_s = newest - row.arrival_s
        if late_s > layout.disorder_s:
            return file.place(number).error(
                f"arrived {late_s:.12g} s before a line above it, and {layout.disorder_s:g} s is the most "
                "that is put in order; sort the file by arrival"
            )
        newest = max(newest, row.arrival_s)
    raise AssertionError("a block read line by line has the requests that it has read at once")
