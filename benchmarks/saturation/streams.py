"""Open streams whose events and tokens are counted, at next to no cost."""

import asyncio
import json
from typing import cast

from benchmarks.common.server_process import HOST

_AT_ONCE = 64
"""Streams that are being opened: more of them would only queue."""
_OPEN_S = 120.0


class StreamError(Exception):
    """A stream was refused, or ended before it was closed here."""


class Streams:
    """Any number of streamed chats, each on a connection of its own.

    Only single bytes are counted, so it does not matter where a read ends.

    Args:
        port: Where the server listens on this machine.
        model: The served model's name.
        most_tokens: The `max_tokens` of every stream, which must not end by itself.
    """

    def __init__(self, port: int, model: str, most_tokens: int) -> None:
        self.failure: str | None = None
        self.blanks = self.breaks = 0
        """What has come on all of them; line breaks without HTTP's own, which come with carriage returns."""
        self._port = port
        self._model = model
        self._most_tokens = most_tokens
        self._open: list[_Stream] = []

    @property
    def events(self) -> int:
        """SSE events: each ends with two line breaks."""
        return self.breaks // 2

    @property
    def tokens(self) -> int:
        """The stub core's tokens: each has one blank, and so has each event, behind `data:`."""
        return self.blanks - self.events

    async def open(self, number: int, step_s: float) -> None:
        """Open `number` more, and wait until each has had a token. `step_s` is told to the stub core.

        Raises:
            StreamError: one of them was refused.
        """
        limit = asyncio.Semaphore(_AT_ONCE)

        async def one() -> None:
            async with limit:
                stream = await self._connect(step_s, self._most_tokens)
                self._open.append(stream)
                await stream.begun

        async with asyncio.timeout(_OPEN_S):
            await asyncio.gather(*(one() for _ in range(number)))

    async def change(self, step_s: float) -> None:
        """Have the stub core take a step every `step_s` seconds from now on."""
        stream = await self._connect(step_s, 1)
        await stream.begun
        stream.close()

    def check(self) -> None:
        """Raise StreamError if one of them has ended."""
        if self.failure is not None:
            raise StreamError(self.failure)

    def close(self) -> None:
        """Leave: the server ends what it still generates."""
        for stream in self._open:
            stream.close()
        self._open.clear()

    async def _connect(self, step_s: float, tokens: int) -> "_Stream":
        loop = asyncio.get_running_loop()
        request = chat_request(self._port, self._model, round(step_s * 1e6), tokens)
        _, stream = await loop.create_connection(lambda: _Stream(self, request), HOST, self._port)
        return stream


class _Stream(asyncio.Protocol):
    def __init__(self, streams: Streams, request: bytes) -> None:
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._streams = streams
        self._request = request
        self._head = b""
        self._closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not its subclasses
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._streams.blanks += data.count(b" ")
        self._streams.breaks += data.count(b"\n") - data.count(b"\r")
        if not self.begun.done():
            self._head += data
            if not self._head.startswith(b"HTTP/1.1 200 "[: len(self._head)]):
                self._fail(f"the answer to a stream was {self._head[:1000]!r}")
            elif b'"content":" ' in self._head:
                self.begun.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._closed:
            self._fail(f"a stream ended by itself ({exc!r})")

    def close(self) -> None:
        self._closed = True
        self._transport.close()

    def _fail(self, reason: str) -> None:
        self._streams.failure = self._streams.failure or reason
        if not self.begun.done():
            self.begun.set_exception(StreamError(reason))


def chat_request(port: int, model: str, seed: int, tokens: int) -> bytes:
    """The bytes of one streamed chat of `tokens` tokens."""
    chat = {
        "model": model,
        "messages": [{"role": "user", "content": "Tell me about the tide."}],
        "stream": True,
        "temperature": 0,
        "ignore_eos": True,
        "seed": seed,
        "max_tokens": tokens,
    }
    body = json.dumps(chat).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {HOST}:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
