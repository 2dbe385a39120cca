"""One keep-alive HTTP/1.1 connection that sends chat requests and times their streamed replies.

A raw asyncio protocol with httptools underneath: the client runs on the same cores as the servers, and
every microsecond it takes is missing there.
"""

import asyncio
import json
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import httptools

from loadtests.client.sse import Scanner


class LoadError(Exception):
    """A request that was not answered in full; the message says what was received."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Timings of one streamed reply, in seconds."""

    ttft_s: float
    """From writing the request to the first frame with text."""
    itl_s: float
    """Mean time between tokens. Frames may carry several, so it is the time of all of them / (tokens - 1)."""
    longest_gap_s: float
    tokens: int
    arrivals: int
    """Distinct moments at which text arrived."""


def chat_request(host: str, port: int, model: str, prompt: str, max_tokens: int) -> bytes:
    """The bytes of one streamed chat completion request that always yields `max_tokens` tokens."""
    body = json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
            "ignore_eos": True,
            "max_tokens": max_tokens,
        }
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Accept: text/event-stream\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class ChatConnection(asyncio.Protocol):
    """A connection in a closed loop: one request at a time, `ask` returns when its reply is complete."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._scanner = Scanner("chat")
        self._now = 0.0
        self._status = 0
        self._refusal = b""
        self.reusable = False
        """Whether the server keeps the connection open for another request."""

    async def ask(self, request: bytes, expected_tokens: int) -> Reply:
        """Send one request. LoadError on any status but 200, an error, a cut or a short reply."""
        if self._transport is None or self._waiter is not None:
            raise LoadError("the connection is not free")
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        scanner = self._scanner = Scanner("chat")
        self._status, self._refusal = 0, b""
        sent_at = time.perf_counter()
        self._transport.write(request)
        await waiter
        tokens, pieces = scanner.usage().output_tokens, scanner.pieces
        if self._status != 200:
            raise LoadError(f"HTTP {self._status}: {self._refusal[:1000]!r}")
        if scanner.error:
            raise LoadError(f"an error in the stream: {scanner.error}")
        if not scanner.done or not pieces:
            raise LoadError(f"the stream ended with [DONE]: {scanner.done}, after {len(pieces)} pieces")
        if tokens != expected_tokens:
            raise LoadError(f"a short reply: {tokens} completion tokens of {expected_tokens}")
        return Reply(
            ttft_s=pieces[0] - sent_at,
            itl_s=(pieces[-1] - pieces[0]) / (tokens - 1),
            longest_gap_s=max((after - before for before, after in pairwise(pieces)), default=0.0),
            tokens=tokens,
            arrivals=len(set(pieces)),
        )

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: the connection is open."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not its subclasses.
        self.reusable = True

    def data_received(self, data: bytes) -> None:
        """asyncio: bytes arrived; this is when their frames arrived."""
        self._now = time.perf_counter()
        if self._waiter is None:
            self.reusable = False  # Bytes nobody asked for: nothing later on this connection can be trusted.
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(LoadError(f"not HTTP: {error!r} in {data[:1000]!r}"))

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio: the connection is closed, which fails a reply that is not complete."""
        self._transport = None
        after = f"a reply with status {self._status or 'not received'}, {len(self._scanner.pieces)} pieces"
        self._end(LoadError(f"the connection was lost ({exc!r}) in {after}"))

    def _end(self, error: LoadError | None) -> None:
        self.reusable = self.reusable and error is None and bool(self._parser.should_keep_alive())
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)

    def on_headers_complete(self) -> None:
        """httptools: the status is known."""
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """httptools: a piece of the body, cut anywhere."""
        if self._status == 200:
            self._scanner.feed(body, self._now)
        else:
            self._refusal += body

    def on_message_complete(self) -> None:
        """httptools: the reply is complete."""
        self._end(None)
