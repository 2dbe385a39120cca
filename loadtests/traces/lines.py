"""A text file, compressed or not, read in blocks of whole lines."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from loadtests.traces.errors import Place, TraceError

_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_BLOCK_BYTES = 1 << 20
LONGEST_LINE_BYTES = 1 << 20
"""A prompt of a million tokens has two thousand prefix blocks, or 20 KB in a line; this is 50 times that."""


class LineFile:
    """Reads a file from its start, as often as asked. Memory does not depend on its length.

    Args:
        path: A regular file; gzip is told by its first bytes.

    Raises:
        TraceError: if it cannot be read, or is empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read_bytes = 0
        """Of the file as it lies on the disk, by the latest `blocks`."""
        if not path.exists():
            raise TraceError(f"{path}: no such file")
        if not path.is_file():
            raise TraceError(f"{path}: must be a file, because it is read more than once")
        try:
            self.size = path.stat().st_size
            with path.open("rb") as file:
                self._compressed = file.read(len(_GZIP)) == _GZIP
        except OSError as error:
            raise TraceError(f"{path}: cannot be read: {error.strerror}") from error
        if self.size == 0:
            raise TraceError(f"{path}: is empty")

    def place(self, line: int) -> Place:
        """A line of this file."""
        return Place(str(self.path), line)

    def blocks(self, skip: int = 0) -> Iterator[tuple[int, bytes]]:
        """Blocks of whole lines, each with the number of its first line. The first `skip` lines are left out.

        Raises:
            TraceError: for a damaged or truncated gzip file, a line too long, and what the disk says.
        """
        self.read_bytes = 0
        number = 1
        rest = b""
        try:
            with self.path.open("rb") as raw:
                file = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if self._compressed else raw
                while data := file.read(_BLOCK_BYTES):
                    self.read_bytes = raw.tell()
                    whole, newline, rest = (rest + data).rpartition(b"\n")
                    if len(rest) > LONGEST_LINE_BYTES:
                        last = number + whole.count(b"\n") + len(newline)
                        raise self.place(last).error(
                            f"longer than {LONGEST_LINE_BYTES} bytes; this is not a trace"
                        )
                    if newline:
                        yield from _without_skipped(number, whole, skip)
                        number += whole.count(b"\n") + 1
        except EOFError as error:
            raise self.place(number).error(
                "the gzip file is truncated somewhere after this line; copy it again"
            ) from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise self.place(number).error(
                f"the gzip file is damaged somewhere after this line: {error}"
            ) from error
        except OSError as error:
            raise TraceError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        if rest:
            yield from _without_skipped(number, rest, skip)
        self.read_bytes = os.path.getsize(self.path)

    def first_lines(self) -> Iterator[tuple[int, str]]:
        """The first lines that are not blank, with their numbers.

        Raises:
            TraceError: where they are not text.
        """
        for number, block in self.blocks():
            yield from self.text_lines(number, block)

    def text_lines(self, first: int, block: bytes) -> Iterator[tuple[int, str]]:
        """The lines of a block that are not blank, with their numbers.

        Raises:
            TraceError: where one is not text.
        """
        for number, line in enumerate(block.split(b"\n"), first):
            try:
                text = (line.removeprefix(_BOM) if number == 1 else line).decode().strip()
            except UnicodeDecodeError:
                raise self.place(number).error("not text (UTF-8)") from None
            if "\0" in text:
                raise self.place(number).error("not text: it has a zero byte")
            if text:
                yield number, text


def _without_skipped(number: int, block: bytes, skip: int) -> Iterator[tuple[int, bytes]]:
    while number <= skip:
        _, newline, block = block.partition(b"\n")
        if not newline:
            return
        number += 1
    yield number, block
