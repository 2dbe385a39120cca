"""The log file of `tideserve run`, with the output of Ray, vLLM and torch."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

PREFIX = "tideserve: "
"""The prefix of lines for the user, from Serve's driver or from HAProxy's supervisor."""

GONE = 3
"""The exit status of Serve's driver after it has printed that Serve is gone."""

_FILE = "tideserve.log"
_MAX_BYTES = 64 << 20
_TAIL_BYTES = 32 << 10
_TAIL_LINES = 12
_LONGEST_LINE = 400
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_FOR_THE_USER = re.compile(rf"(\([^()]*pid=[^()]*\) )?(?P<line>{PREFIX}.*)")
_ERROR = re.compile(r"\b(ERROR|CRITICAL|FATAL)\b|^(\(.*?\) )*[\w.]*(Error|Exception|Interrupt)\b")
# The raylet repeats these warnings about its machine every ten seconds.
_WARNINGS = ("killed due to memory pressure", "% full, available space")


class ServerLog:
    """The log file of one start of a server. `look` yields its lines for the user.

    The server's processes write to the file and not to a pipe. So they can still write, and shut down in
    order, after this process has been killed.
    """

    def __init__(self, folder: Path, *, verbose: bool = False) -> None:
        descriptor, path = tempfile.mkstemp(prefix="tideserve-", suffix=".log", dir=folder)
        os.close(descriptor)
        self.path = Path(path)
        """The file's path, which `move_to` changes."""
        self.named = False
        """Whether `tideserve run` has printed the path."""
        self._verbose = verbose
        self._reader = self.path.open("rb")
        self._rest = b""
        self._warned: set[str] = set()

    def close(self) -> None:
        """Stop reading. The file stays."""
        self._reader.close()

    def remove(self) -> None:
        for path in (self.path, self._copy):
            path.unlink(missing_ok=True)

    @property
    def _copy(self) -> Path:
        return Path(f"{self.path}.1")

    def writer(self) -> BinaryIO:
        return self.path.open("ab")

    def move_to(self, folder: Path) -> bool:
        """Move the file to Ray's log folder. Returns whether this call moved it. Writers do not notice."""
        if self.path.parent == folder:
            return False
        with suppress(OSError):
            self.path = self.path.rename(folder / _FILE)
        return self.path.parent == folder

    def look(self) -> Iterator[str]:
        """Yield the new lines for the user; all new lines with `verbose`."""
        yield from self._lines_to_show(self._reader.read())
        if self._reader.tell() > _MAX_BYTES:
            yield from self._rotate()

    def _lines_to_show(self, data: bytes) -> Iterator[str]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace")
            if found := _FOR_THE_USER.fullmatch(_COLOURS.sub("", text)):
                yield found["line"]
            elif self._verbose or self._is_new_warning(text):
                yield text

    def _rotate(self) -> Iterator[str]:
        """Copy the file to `.1` and truncate it. Lines written between the two steps are lost."""
        with suppress(OSError):  # a full disk or a deleted file must not end the server
            self._copy.unlink(missing_ok=True)
            create = os.O_WRONLY | os.O_CREAT | os.O_EXCL  # follow no link that another user has made
            with os.fdopen(os.open(self._copy, create, 0o600), "wb") as copy, self.path.open("rb") as file:
                shutil.copyfileobj(file, copy)
        with suppress(OSError):
            unseen = self._reader.read()
            os.truncate(self.path, 0)
            self._reader.seek(0)
            yield from self._lines_to_show(unseen)

    def errors(self) -> list[str]:
        """Return the last lines with errors near the end of the log."""
        return [line for line in self._end() if _ERROR.search(line)][-_TAIL_LINES:]

    def tail(self) -> list[str]:
        """Return the last lines with errors, or the last lines if there is no error."""
        return self.errors() or self._end()[-_TAIL_LINES:]

    def _end(self) -> list[str]:
        """Return the last lines, shortened and without colours."""
        file = self._reader.fileno()
        start = max(0, os.fstat(file).st_size - _TAIL_BYTES)
        end = os.pread(file, _TAIL_BYTES, start).decode(errors="replace")
        return [line[:_LONGEST_LINE] for line in _COLOURS.sub("", end).splitlines() if line.strip()]

    def _is_new_warning(self, text: str) -> bool:
        kind = next((kind for kind in _WARNINGS if kind in text), None)
        if kind is None or kind in self._warned:
            return False
        self._warned.add(kind)
        return True
