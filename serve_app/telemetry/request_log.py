"""The request log of one engine replica: a line a request, written once a second."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from serve_app.wire.request_line import RequestLine

logger = logging.getLogger("ray.serve")

FLUSH_INTERVAL_S = 1.0
MOST_WAITING_BYTES = 16 << 20
"""Of lines that wait for the disk: some 50,000."""
_TELL_INTERVAL_S = 60.0


class Destination(Protocol):
    """Where lines go: see `LogSegments`."""

    def append(self, data: bytes) -> None:
        """Write whole lines. Raises OSError."""

    def close(self) -> None:
        """Write no more for now."""


class RequestLog:
    """Takes lines in the event loop, where that costs some microseconds, and writes them in a thread.

    What cannot be written is lost, counted and said: serving goes on.

    Args:
        destination: Where they go.
        clock: Seconds.
    """

    def __init__(self, destination: Destination, clock: Callable[[], float] = time.monotonic) -> None:
        self._destination = destination
        self._clock = clock
        self._encode = msgspec.json.Encoder().encode
        self._lines: list[bytes] = []
        self._waiting_bytes = 0
        self._writing = asyncio.Lock()
        self._told_at = -_TELL_INTERVAL_S
        self._lost = 0
        """Lines, since that was last said."""

    def add(self, line: RequestLine) -> None:
        """Take the line of a request that has ended."""
        data = self._encode(line)
        if self._waiting_bytes + len(data) > MOST_WAITING_BYTES:
            self._lose(1, f"more than {MOST_WAITING_BYTES} bytes wait for the disk")
            return
        self._lines.append(data)
        self._waiting_bytes += len(data) + 1

    async def flush(self) -> None:
        """Write what has been taken."""
        async with self._writing:
            lines, self._lines, self._waiting_bytes = self._lines, [], 0
            if not lines:
                return
            lines.append(b"")  # each line ends with a line break, the last one too
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
        """Write the rest."""
        await self.flush()
        await asyncio.to_thread(self._destination.close)

    def _lose(self, lines: int, reason: str) -> None:
        self._lost += lines
        now = self._clock()
        if now - self._told_at >= _TELL_INTERVAL_S:
            logger.error("request log: %d lines lost: %s", self._lost, reason)
            self._told_at = now
            self._lost = 0
