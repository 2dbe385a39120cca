"""An HTTP response that runs an engine call, and ends it the moment its client leaves."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from http import HTTPStatus

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from serve_app.api.cold_wait import ColdWait
from serve_app.api.engine_client import EVENT_STREAM, JSON, EngineClient, EngineRequest, Outcome
from serve_app.api.errors import DONE, ERROR_EVENT, ApiError, deadline_exceeded, stream_failed
from serve_app.api.models import Traffic
from serve_app.api.write_now import WriteNow, write_now

logger = logging.getLogger("ray.serve")

STREAM_HEADERS = {
    "Content-Type": f"{EVENT_STREAM}; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",  # nginx and its kin would hold tokens back
}
_REFUSALS = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


class EngineResponse(Response):
    """Streams or sends what an engine answers to `request`.

    A client that asked for a stream is sent comments while its request is held. The first of them sends the
    status, 200; from then on a failure is an SSE error event.

    Args:
        engine: The engines of the model that the request is for.
        request: What to run.
        traffic: Told what becomes of the request.
        release_body: Called when the request's body is needed no more: with the first byte of an answer, or
            at the end. It may be called again.
    """

    _send: Send

    def __init__(
        self,
        engine: EngineClient,
        request: EngineRequest,
        traffic: Traffic,
        release_body: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self._engine = engine
        self._request = request
        self._traffic = traffic
        self._release_body = release_body
        self._started = False
        self._ended = False
        self._write_now: WriteNow | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, or stop working on it when the client leaves first."""
        request, self._send, self._write_now = self._request, send, write_now(scope)
        self._traffic.opened(request)
        if request.wants_stream:
            request.state.tell_wait = self._tell_wait
        answer = asyncio.ensure_future(self._answer())
        leaving = asyncio.ensure_future(_disconnected(receive))
        left = True  # also where Ray cancels this call, which it does on a client's behalf
        try:
            rest_s = None if request.timeout_s is None else max(0.0, request.timeout_s - request.waited_s)
            done, _ = await asyncio.wait(
                (answer, leaving), timeout=rest_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                await self._expire(answer)
            left = not answer.done()
        finally:
            # Cancelling the answer closes the call, which aborts its sequences in the engine.
            for task in (answer, leaving):
                task.cancel()
            try:
                results = await asyncio.gather(answer, leaving, return_exceptions=True)
            finally:  # A second cancellation must not leave the request open for ever.
                state = request.state
                state.outcome = state.outcome or ("abandoned" if left else "error")
                # They refer to this response, which refers to the request.
                state.tell_wait = state.write_now = None
                self._drop_body()
                self._traffic.closed(request)
        if isinstance(results[0], Exception):
            raise results[0]

    async def _expire(self, answer: asyncio.Future[None]) -> None:
        """Give up at the client's deadline: the engine frees its sequences, then the client is told."""
        answer.cancel()
        await asyncio.wait((answer,))
        if not answer.cancelled() or self._ended:
            return
        if self._request.state.outcome is not None:  # only the end of the body is missing
            await self._send_part(b"", more=False)
            return
        assert self._request.timeout_s is not None
        error = deadline_exceeded(self._request.timeout_s)
        await self._send_whole(error.status, error.body(), error.headers)

    async def _tell_wait(self, wait: ColdWait) -> None:
        await self._start(HTTPStatus.OK, STREAM_HEADERS)
        await self._send_part(wait.comment())

    async def _answer(self) -> None:
        try:
            async with self._engine.call(self._request) as reply:
                if reply.stream is not None:
                    await self._send_stream(reply.status, reply.headers, reply.stream)
                else:
                    await self._send_whole(reply.status, reply.body, reply.headers)
        except ApiError as error:
            if error.status in _REFUSALS:
                self._traffic.rejected(self._request, error)
            await self._send_whole(error.status, error.body(), error.headers)
        except Exception:
            if not self._started:
                raise
            await self._send_failure()

    async def _send_stream(
        self, status: int, headers: Mapping[str, str], stream: AsyncIterator[bytes]
    ) -> None:
        await self._start(status, {**STREAM_HEADERS, **headers})
        before = last = b""
        written = self._write_now  # what of the stream does not come here
        try:
            async for chunk in stream:
                await self._send_part(chunk)
                if not last:
                    self._first_byte()
                    self._request.state.write_now = written
                before, last = last, chunk
                if written is not None and written.last:
                    before, written.last = written.last, b""
        except Exception:
            await self._send_failure()
        else:
            await self._send_part(b"", more=False)
        finally:
            if last.endswith(DONE):  # Clients may leave with it, before the engine's stream has ended.
                self._request.state.outcome = stream_outcome(before, last)

    async def _send_whole(self, status: int, body: bytes, extra: Mapping[str, str]) -> None:
        if not self._started:
            await self._start(status, {"Content-Type": JSON, "Content-Length": str(len(body)), **extra})
            await self._send_part(body, more=False)
        else:
            kind = ERROR_EVENT if status >= HTTPStatus.BAD_REQUEST else b""
            # A line break would end the event's data; in JSON it can only stand between two tokens.
            event = kind + b"data: " + body.replace(b"\n", b" ") + b"\n\n"
            await self._send_part(event + DONE, more=False)
        self._request.state.outcome = status_outcome(status)
        if status < HTTPStatus.BAD_REQUEST:
            self._first_byte()

    async def _send_failure(self) -> None:
        # The status has been sent; a stream that just stopped would look complete to many clients.
        logger.exception("request %s: failed within its stream", self._request.request_id)
        await self._send_part(stream_failed().last_frames(), more=False)

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        if not self._started:
            self._started = True
            raw = [
                (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()
            ]
            await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def _send_part(self, body: bytes, *, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
        self._ended = not more

    def _first_byte(self) -> None:
        self._request.state.ttft_s = self._request.waited_s
        self._drop_body()
        self._traffic.first_byte(self._request)

    def _drop_body(self) -> None:
        self._request.release_body()
        self._release_body()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def status_outcome(status: int) -> Outcome:
    """The outcome of a request that was answered with this HTTP status."""
    if status < HTTPStatus.BAD_REQUEST:
        return "ok"
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rejected"
    return "error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "client_error"


def stream_outcome(before: bytes, last: bytes) -> Outcome:
    """The outcome of a stream by its last two chunks, each of whole frames; `before` is empty for only one.

    An engine or a relay that ends a stream with an error sends the error event and `[DONE]` as the last two
    frames. So it is enough to look at two frames, once, when the stream is over. Within the JSON of a frame
    there is no line break, so no text can be mistaken for an event.
    """
    if not last.endswith(DONE):
        return "error"
    rest = last[: -len(DONE)] or before
    start = rest.rfind(b"\n\n", 0, -2)
    return "error" if rest.startswith(ERROR_EVENT, start + 2 if start >= 0 else 0) else "ok"
