"""The files that a trace is made of, compressed or not, read in blocks of whole lines."""

from __future__ import annotations

import glob
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from traces.trace import TraceError

TracePath = str | PathLike[str]

LOG_SUFFIXES = (".jsonl", ".jsonl.gz")
"""How the names of request logs end; other files in a folder are ignored."""
_GZIP = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_BLOCK_BYTES = 1 << 20
LONGEST_LINE_BYTES = 1 << 20
"""A prompt of a million tokens has two thousand prefix blocks, or 20 KB in a line; this is 50 times that."""
_LINES_NAMED = 5
_skim = msgspec.json.Decoder(msgspec.Raw).decode
"""Checks JSON and makes nothing of it: a microsecond a line."""


class LineError(TraceError):
    """A line that is wrong. `index` is its place in the `Lines` it was read with."""

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.index = index


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines of a file that are not blank, with their numbers in the file, counted from 1."""

    file: Path
    numbers: Sequence[int]
    texts: Sequence[str]

    def error(self, index: int, what: str) -> LineError:
        """The error that `what` is wrong with the line at `index`."""
        return LineError(f"{self.file}, line {self.numbers[index]}: {what}", index)

    def before(self, index: int) -> Lines:
        """The lines before the one at `index`."""
        return Lines(self.file, self.numbers[:index], self.texts[:index])


class LineFile:
    """Reads a file from its start, as often as asked. Memory does not depend on its length.

    Lines that a crash tore are left out: the start of a JSON object at the end of the file, or before the
    lines of a process that was started again; zero bytes that a file system left; the last line of a
    truncated gzip file. All other lines go to the format, complete or not.

    Raises TraceError if it cannot be read, or is empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read_bytes = 0
        """Bytes of the file on disk that the latest `blocks` has read."""
        self._torn: set[int] = set()
        self._truncated = False
        self._truncated_after: int | None = None
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

    def first(self) -> Lines:
        """The first lines, at least one. Raises TraceError where none is whole, or one is not text."""
        found = next(self.blocks(), None)
        if found is None:
            torn = self.left_out()
            raise TraceError(f"{torn}; no line is whole" if torn else f"{self.path}: has blank lines only")
        return found

    def has_lines(self) -> bool:
        """Whether any line is complete."""
        return next(self.blocks(), None) is not None

    def left_out(self) -> str:
        """The torn lines, in a sentence, as far as the file has been read; empty if there are none."""
        notes = [] if self._truncated_after is None else [f"is truncated after line {self._truncated_after}"]
        if self._torn:
            numbers = [str(number) for number in sorted(self._torn)]
            named = ", ".join(numbers[:_LINES_NAMED]) + (", …" if numbers[_LINES_NAMED:] else "")
            notes.append(f"torn lines left out: {len(numbers)} (line {named})")
        return f"{self.path}: {'; '.join(notes)}" if notes else ""

    def blocks(self, skip: int = 0) -> Iterator[Lines]:
        """Every line after the first `skip`, about a megabyte at a time.

        Raises TraceError for a damaged gzip file, a line that is too long or not text, and an error of the
        disk reports.
        """
        begun: tuple[int, str] | None = None
        for first, block in self._blocks():
            numbers, texts = [], []
            for number, text in enumerate(self._texts(first, block), first):
                if not text or number <= skip:
                    continue
                if begun is not None and not text.startswith("{"):
                    numbers.append(begun[0])  # an object on several lines, which is for the format to refuse
                    texts.append(begun[1])
                elif begun is not None:
                    self._torn.add(begun[0])
                whole = self._whole(number, text) if text.startswith("{") else text
                begun = None if whole else (number, text)
                if whole:
                    numbers.append(number)
                    texts.append(whole)
            if texts:
                yield Lines(self.path, numbers, texts)
        if begun is not None:
            self._torn.add(begun[0])

    def _whole(self, number: int, text: str) -> str:
        """A line that begins an object; empty if it is torn.

        A process that appends to a torn line without a line break joins its first line to it.
        """
        state = _state(text)
        head, brace, tail = text.rpartition('{"')
        if state == "wrong" and head and _state(head) == "torn" and _state(brace + tail) == "whole":
            self._torn.add(number)
            return brace + tail
        return "" if state == "torn" else text

    def _texts(self, first: int, block: bytes) -> list[str]:
        try:
            if b"\0" not in block:
                return [line.strip() for line in block.decode().split("\n")]
        except UnicodeDecodeError:
            pass
        return [self._text(number, line) for number, line in enumerate(block.split(b"\n"), first)]

    def _text(self, number: int, line: bytes) -> str:
        bare = line.strip(b"\0")
        if bare != line and (not bare.strip() or bare.startswith(b"{")):
            self._torn.add(number)  # a file system wrote the length of the file and not its content
            line = bare
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            if not (line.startswith(b"{") and error.reason == "unexpected end of data"):
                raise self._error(number, "not text (UTF-8)") from None
            text = line[: error.start].decode()  # torn within a character
        if "\0" in text:
            raise self._error(number, "not text: it has a zero byte")
        return text.strip()

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """Blocks of whole lines, each with the number of its first line."""
        self.read_bytes = 0
        number = 1
        rest = b""
        try:
            with self.path.open("rb") as raw:
                file = gzip.GzipFile(fileobj=raw) if self._compressed else raw
                while data := self._read(file):
                    self.read_bytes = raw.tell()
                    whole, newline, rest = (rest + data).rpartition(b"\n")
                    if len(rest) > LONGEST_LINE_BYTES:
                        last = number + whole.count(b"\n") + len(newline)
                        raise self._error(
                            last, f"longer than {LONGEST_LINE_BYTES} bytes; this is not a trace"
                        )
                    if newline:
                        yield number, whole.removeprefix(_BOM) if number == 1 else whole
                        number += whole.count(b"\n") + 1
        except (gzip.BadGzipFile, zlib.error) as error:
            what = f"the gzip file is damaged somewhere after this line: {error}"
            raise self._error(number, what) from error
        except OSError as error:
            raise TraceError(f"{self.path}: cannot be read: {error.strerror or error}") from error
        if self._truncated:
            self._truncated_after = number - 1
            self._torn |= {number} if rest else set()
        elif rest:
            yield number, rest.removeprefix(_BOM) if number == 1 else rest
        self.read_bytes = self.size

    def _read(self, file: BinaryIO | gzip.GzipFile) -> bytes:
        """About a block; empty at the end, also where a gzip file is truncated."""
        if not isinstance(file, gzip.GzipFile):
            return file.read(_BLOCK_BYTES)
        block = io.BytesIO()
        try:
            # `read` would lose what it has decompressed when the file ends too early.
            while block.tell() < _BLOCK_BYTES and (data := file.read1(_BLOCK_BYTES)):
                block.write(data)
        except EOFError:
            self._truncated = True
        return block.getvalue()

    def _error(self, number: int, what: str) -> TraceError:
        return TraceError(f"{self.path}, line {number}: {what}")


def _state(text: str) -> Literal["whole", "torn", "wrong"]:
    """Whether a line is JSON, begins JSON and ends too early, or is not JSON."""
    try:
        _skim(text)
    except msgspec.DecodeError as error:
        at_end = f"(byte {len(text.encode())})"  # of a number that has only begun
        return "torn" if "truncated" in str(error) or str(error).endswith(at_end) else "wrong"
    except RecursionError:
        return "wrong"
    return "whole"


def trace_files(path: TracePath | Sequence[TracePath]) -> list[LineFile]:
    """The files that `path` names: a file, the matches of a pattern, the request logs of a folder, or a list.

    Of several files, empty ones are left out: a replica creates its log before its first request. In a
    folder, a compressed file is left out while the file it was made from is there.

    Raises:
        TraceError: if there are none, or one cannot be read.
    """
    paths = [path] if isinstance(path, str | PathLike) else path
    found = [file for one in paths for file in _named(one)]
    if not found:
        raise TraceError("no trace given")
    if len(found) == 1:
        return [LineFile(found[0])]
    filled = [file for file in dict.fromkeys(found) if not file.is_file() or file.stat().st_size > 0]
    if not filled:
        raise TraceError(f"{name_of(path)}: all {len(found)} files are empty")
    return [LineFile(file) for file in filled]


def name_of(path: TracePath | Sequence[TracePath]) -> str:
    """The name of a trace in reports."""
    if isinstance(path, str | PathLike):
        return Path(path).name or str(path)
    names = [name_of(one) for one in path]
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _named(path: TracePath) -> list[Path]:
    given = Path(path)
    if given.is_dir():
        logs = sorted(file for file in given.iterdir() if file.is_file() and file.name.endswith(LOG_SUFFIXES))
        logs = [log for log in logs if log.suffix != ".gz" or log.with_suffix("") not in logs]
        if not logs:
            raise TraceError(
                f"{given}: a folder without request logs: no file in it ends with {' or '.join(LOG_SUFFIXES)}"
            )
        return logs
    if not given.exists() and glob.has_magic(str(given)):
        matched = sorted(Path(file) for file in glob.glob(str(given)) if not Path(file).is_dir())
        if not matched:
            raise TraceError(f"{given}: no file matches this pattern")
        return matched
    return [given]
