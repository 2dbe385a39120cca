"""An HTTP client that may read slowly, and that may leave in several ways."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from random import Random
from typing import Any

import httptools

from tests.simulation.network import Transport

LIMIT_S = 400.0
"""No request of a world takes so long."""


@dataclass
class Asked:
    """What a client asks for, and how it behaves."""

    name: str
    at_s: float
    body: dict[str, Any]
    leaves: str = ""
    """How it leaves before the end: `abort`, `close` or `half-close`; "" if it stays."""
    leaves_after_s: float = 0.0
    pauses_s: float = 0.0
    """The mean pause of a slow reader; 0 for a reader without pauses."""


class Client(asyncio.Protocol):
    """Sends one request, and keeps what it gets."""

    def __init__(self, asked: Asked, seed: str) -> None:
        self.asked = asked
        self.status = 0
        self.body = b""
        self.complete = False
        """Whether the answer's last byte came."""
        self.left = False
        self.hung = False
        self._draw = Random(f"client {seed} {asked.name}")
        self._done = asyncio.Event()
        self._parser = httptools.HttpResponseParser(self)
        self._transport: Transport

    async def run(self, host: str, port: int) -> None:
        """Ask, and read until the end."""
        asked = self.asked
        loop = asyncio.get_running_loop()
        await asyncio.sleep(asked.at_s)
        body = json.dumps(asked.body).encode()
        path = "chat/completions" if "messages" in asked.body else "completions"
        head = (
            f"POST /v1/{path} HTTP/1.1\r\nHost: tide\r\nContent-Type: application/json\r\n"
            f"X-Request-ID: {asked.name}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        transport, _ = await loop.create_connection(lambda: self, host, port)
        self._transport = transport  # type: ignore[assignment]
        transport.write(head.encode())
        transport.write(body)
        leaving = loop.call_later(asked.leaves_after_s, self._leave) if asked.leaves else None
        try:
            async with asyncio.timeout(LIMIT_S):
                await self._done.wait()
        except TimeoutError:
            self.hung = True
        if leaving is not None:
            leaving.cancel()
        transport.close()

    def _leave(self) -> None:
        if not self._done.is_set():
            self.left = True
            leave = {"abort": self._transport.abort, "close": self._transport.close}
            leave.get(self.asked.leaves, self._transport.write_eof)()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)
        if self.asked.pauses_s and not self._done.is_set():
            self._transport.pause_reading()
            pause_s = self._draw.expovariate(1 / self.asked.pauses_s)
            asyncio.get_running_loop().call_later(pause_s, self._transport.resume_reading)

    def connection_lost(self, error: Exception | None) -> None:
        self._done.set()

    def on_status(self, _: bytes) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete = True
        self._done.set()
