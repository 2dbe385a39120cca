"""The request log of one engine replica: one line per request, written once a second."""

import asyncio
import logging
import time
from collections.abc import Callable

import msgspec

from serve_app.telemetry.log_segments import LogSegments
from serve_app.wire.request_line import RequestLine

logger = logging.getLogger("ray.serve")

FLUSH_INTERVAL_S = 1.0
MOST_WAITING_BYTES = 16 << 20
"""Bound on the lines that wait for the disk: some 50,000 lines."""
_TELL_INTERVAL_S = 60.0


class RequestLog:
    """Takes lines in the event loop, where that costs some microseconds, and writes them in a thread.

    Lines that cannot be written are lost, and their number is logged: serving goes on.
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
        """Add the line of a request that has ended."""
        data = self._encode(line)
        if self._waiting_bytes + len(data) > MOST_WAITING_BYTES:
            self._lose(1, f"more than {MOST_WAITING_BYTES} bytes wait for the disk")
            return
        self._lines.append(data)
        self._waiting_bytes += len(data) + 1

    async def flush(self) -> None:
        """Write the lines taken so far."""
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
