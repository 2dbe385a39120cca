"""The request log of one engine replica: one line per request, in files of bounded size."""

import asyncio
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import ray

from serve_app.settings.tree import RequestLogSettings
from serve_app.wire.request_line import RequestLine

logger = logging.getLogger("ray.serve")

FLUSH_INTERVAL_S = 1.0
MOST_WAITING_BYTES = 16 << 20
"""Bound on the lines that wait for the disk: some 50,000 lines."""
_TELL_INTERVAL_S = 60.0
_SEGMENTS = 8


class LogSegments:
    """Appends to a file until it is an eighth of `max_bytes`, then to the next one.

    Before each new file, the oldest files of its family are removed until the new one fits, even if other
    processes wrote them. So a family takes `max_bytes`, and an eighth more for each other process that
    writes.

    Several threads may append, and each write is whole. The folder is made with the first file. The names of
    a family's files begin with the parts of `family`. `writer` distinguishes the files of this process.
    """

    def __init__(self, folder: Path, family: Sequence[str], writer: str, max_bytes: int) -> None:
        self._folder = folder
        self._family = ".".join(_plain(part) for part in family)
        self._writer = _plain(writer)
        self._room = max_bytes
        self._segment_bytes = max_bytes // _SEGMENTS
        self._number = 0
        self._file: int | None = None
        self._lock = threading.Lock()

    def append(self, data: bytes) -> None:
        """Write `data`.

        Raises:
            OSError: the disk refused. The next call tries again, and begins a new line.
        """
        with self._lock:
            file = self._opened(len(data))
            end = os.fstat(file).st_size
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(file, rest) :]
            except OSError:
                try:
                    os.ftruncate(file, end)
                except OSError:
                    self._close()  # the torn line stays, and the next write begins another file
                raise

    def close(self) -> None:
        """Close the file. Another `append` begins the next."""
        with self._lock:
            self._close()

    def _opened(self, more_bytes: int) -> int:
        if self._file is not None:
            now = os.fstat(self._file)
            # Without links, another process has removed the file to make room.
            if now.st_nlink and (now.st_size == 0 or now.st_size + more_bytes <= self._segment_bytes):
                return self._file
            self._close()
        self._folder.mkdir(parents=True, exist_ok=True)
        self._make_room()
        self._number += 1
        path = self._folder / f"{self._family}.{self._writer}.{self._number:04d}.jsonl"
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        # A killed process with the same writer may have left a torn line.
        if (end := os.fstat(self._file).st_size) and os.pread(self._file, 1, end - 1) != b"\n":
            os.write(self._file, b"\n")
        return self._file

    def _make_room(self) -> None:
        """Remove the oldest files of the family until one more fits."""
        found = []
        for path in self._folder.glob(f"{self._family}.*.jsonl"):
            try:
                status = path.stat()
            except FileNotFoundError:  # another process has removed it
                continue
            found.append((status.st_mtime_ns, status.st_size, path))
        used = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if used + self._segment_bytes <= self._room:
                return
            path.unlink(missing_ok=True)
            used -= size

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def request_log_segments(
    settings: RequestLogSettings, app: str, deployment: str, replica: str
) -> LogSegments | None:
    """Return the files of a replica's request log, or None if it is switched off.

    The default folder is Ray Serve's log folder of this node, which log shippers and `ray logs` read.
    """
    if not settings.enabled:
        return None
    if settings.directory is not None:
        folder = Path(settings.directory)
    else:
        context = ray.get_runtime_context()
        folder = Path(context.get_temp_dir(), context.get_session_name(), "logs", "serve")
    return LogSegments(folder, ("requests", app, deployment), replica, settings.max_bytes)


def _plain(name: str) -> str:
    """Return a part of a file's name without dots, so that no family begins with the name of another."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", name)


class RequestLog:
    """Takes lines in the event loop, in some microseconds each, and writes them in a thread.

    Lines that cannot be written are lost, and their number is logged. Requests are still served.
    """

    def __init__(self, destination: LogSegments, clock: Callable[[], float] = time.monotonic) -> None:
        self._destination = destination
        self._clock = clock
        self._encode = msgspec.json.Encoder().encode
        self._lines: list[bytes] = []
        self._waiting_bytes = 0
        self._writing = asyncio.Lock()
        self._told_at = -_TELL_INTERVAL_S
        self._lost = 0
        """Lines lost since the loss was last logged."""

    def add(self, line: RequestLine) -> None:
        data = self._encode(line)
        if self._waiting_bytes + len(data) > MOST_WAITING_BYTES:
            self._lose(1, f"more than {MOST_WAITING_BYTES} bytes wait for the disk")
            return
        self._lines.append(data)
        self._waiting_bytes += len(data) + 1

    async def flush(self) -> None:
        async with self._writing:
            lines, self._lines, self._waiting_bytes = self._lines, [], 0
            if not lines:
                return
            lines.append(b"")  # the last line ends with a line break too
            try:
                await asyncio.to_thread(self._destination.append, b"\n".join(lines))
            except OSError as error:
                self._lose(len(lines) - 1, str(error))

    async def keep_writing(self) -> None:
        """Write once a second, until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_INTERVAL_S)
            await self.flush()

    async def close(self) -> None:
        """Write the last lines and close the file."""
        await self.flush()
        await asyncio.to_thread(self._destination.close)

    def _lose(self, lines: int, reason: str) -> None:
        self._lost += lines
        now = self._clock()
        if now - self._told_at >= _TELL_INTERVAL_S:
            logger.error("request log: %d lines lost: %s", self._lost, reason)
            self._told_at = now
            self._lost = 0
