"""An HTTP response that runs an engine call, and ends it the moment its client leaves."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from http import HTTPStatus

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from serve_app.api.engine_client import EVENT_STREAM, JSON, ColdWait, EngineClient, EngineReply, EngineRequest
from serve_app.api.errors import DONE, ERROR_EVENT, ApiError, stream_failed
from serve_app.api.outcome import Outcome, status_outcome, stream_outcome
from serve_app.api.traffic import UNCOUNTED, Traffic

logger = logging.getLogger("ray.serve")

STREAM_HEADERS = {
    "Content-Type": f"{EVENT_STREAM}; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",  # nginx and its kin would hold tokens back
}
_REFUSALS = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


class EngineResponse(Response):
    """Streams or sends what an engine answers to `request`.

    A client that asked for a stream is sent comments while its request is held for want of a replica.
    From the first of them on the status is out, 200, and a failure is an SSE error event.

    Args:
        client: The engines of the model asked for.
        request: What to run.
        traffic: Told what becomes of the request.
        stream: Whether the client asked for a stream.
        release_body: Called when the request's body is needed no more: with the first byte of an answer, or
            at the end. May be called again.
    """

    _send: Send

    def __init__(
        self,
        client: EngineClient,
        request: EngineRequest,
        traffic: Traffic = UNCOUNTED,
        *,
        stream: bool = False,
        release_body: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._client = client
        self._request = request
        self._traffic = traffic
        self._stream = stream
        self._release_body = release_body
        self._arrived = time.perf_counter() - request.waited_s
        self._held_s = 0.0
        self._admitted = False
        self._started = False
        self._answered = False
        self._outcome: Outcome | None = None
        """None until all of an answer has been sent."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, or stop working on it when the client leaves first."""
        self._send = send
        self._traffic.opened(self._request)
        answer = asyncio.ensure_future(self._answer())
        leaving = asyncio.ensure_future(_disconnected(receive))
        left = True  # so it is too where Ray cancels this call, which it does on a client's behalf
        try:
            await asyncio.wait((answer, leaving), return_when=asyncio.FIRST_COMPLETED)
            left = not answer.done()
            if left and not self._answered:
                self._traffic.abandoned(self._request)
        finally:
            # Cancelling the answer closes the call, which aborts its sequences in the engine.
            for task in (answer, leaving):
                task.cancel()
            try:
                outcomes = await asyncio.gather(answer, leaving, return_exceptions=True)
            finally:  # A second cancellation must not leave the request open for ever.
                outcome = self._outcome or ("abandoned" if left else "error")
                self._release_body()
                self._traffic.closed(self._request, self._held_s, outcome)
        if isinstance(outcomes[0], Exception):
            raise outcomes[0]

    async def held(self, wait: ColdWait) -> None:
        """Tell a client that asked for a stream what its request waits for."""
        if self._stream:
            await self._start(HTTPStatus.OK, STREAM_HEADERS)
            await self._send_part(wait.comment())

    def waited(self, seconds: float) -> None:
        """Add to the time for which the request was held."""
        self._held_s += seconds

    def admitted(self) -> None:
        """Count the hand-over, the first time."""
        if not self._admitted:
            self._admitted = True
            self._traffic.admitted(self._request)

    async def _answer(self) -> None:
        try:
            # Not kept: a response that held a request that holds the response would linger, with its body.
            async with self._client.call(replace(self._request, watch=self, streams=self._stream)) as reply:
                if reply.stream is not None:
                    await self._send_stream(reply)
                else:
                    await self._send_whole(reply.status, reply.body, reply.headers)
        except ApiError as error:
            self._answered = True
            if error.status in _REFUSALS:
                self._traffic.rejected(self._request, error)
            await self._send_whole(error.status, error.body(), error.headers)
        except Exception:
            if not self._started:
                raise
            await self._send_failure()

    async def _send_stream(self, reply: EngineReply) -> None:
        assert reply.stream is not None
        await self._start(reply.status, {**STREAM_HEADERS, **reply.headers})
        before = last = b""
        try:
            async for chunk in reply.stream:
                # Not through `_send_part`: this runs for every token.
                await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
                before, last = last, chunk
                if not self._answered:
                    self._first_byte()
        except Exception:
            await self._send_failure()
        else:
            await self._send_part(b"", more=False)
        finally:
            if last.endswith(DONE):  # Clients may leave with it, before the engine's stream has ended.
                self._outcome = stream_outcome(before, last)

    async def _send_whole(self, status: int, body: bytes, extra: Mapping[str, str]) -> None:
        if not self._started:
            await self._start(status, {"Content-Type": JSON, "Content-Length": str(len(body)), **extra})
            await self._send_part(body, more=False)
        else:
            kind = ERROR_EVENT if status >= HTTPStatus.BAD_REQUEST else b""
            # A line break would end the event's data; in JSON it can only stand between two tokens.
            await self._send_part(kind + b"data: " + body.replace(b"\n", b" ") + b"\n\n" + DONE)
            await self._send_part(b"", more=False)
        self._outcome = status_outcome(status)
        if status < HTTPStatus.BAD_REQUEST:
            self._first_byte()

    async def _send_failure(self) -> None:
        # The status is out; a stream that just stopped would look complete to many clients.
        logger.exception("request %s: failed within its stream", self._request.request_id)
        await self._send_part(stream_failed().last_frames())
        await self._send_part(b"", more=False)

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        if not self._started:
            self._started = True
            await self._send({"type": "http.response.start", "status": status, "headers": _raw(headers)})

    async def _send_part(self, body: bytes, *, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    def _first_byte(self) -> None:
        self._answered = True
        # An answer may take minutes, and nobody will send the request again.
        self._request = replace(self._request, body=b"")
        self._release_body()
        self._traffic.first_byte(self._request, time.perf_counter() - self._arrived, self._held_s)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _raw(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
