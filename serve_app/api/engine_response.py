"""An HTTP response that runs an engine call, and ends the call when its client leaves.

An ASGI application passes each part of a body to the coroutine `send`. Ray's and Starlette's coroutines lie
between this `send` and uvicorn's, and a task has to wake to await them all. So an extension in the scope has
uvicorn's connection, and most events are written to it directly (`WriteNow`).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Never, Protocol

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from serve_app.api.dialect import EVENT_STREAM, JSON, ColdWait, dialect_of
from serve_app.api.engine_client import EngineClient, EngineRequest, Outcome, Traffic
from serve_app.api.errors import DONE, ApiError, deadline_exceeded, stream_failed
from serve_app.cancellation import only_own_cancellation

logger = logging.getLogger("ray.serve")

STREAM_HEADERS = {
    "Content-Type": f"{EVENT_STREAM}; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",  # nginx and its kin would delay tokens
}
_REFUSALS = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
_EXTENSION = "tideserve.write_now"


class Use(Protocol):
    """The place of a request in the limits or the budgets of its API key."""

    headers: dict[str, str]
    """Headers of the answer."""

    def settle(self, request: EngineRequest) -> None:
        """End the use, with the outcome of the request."""


class EngineResponse(Response):
    """Sends or streams an engine's answer to `request`.

    While a request for a stream waits for output, its client gets comments or events. The first of them sends
    the status 200. From then on a failure is an SSE error event.

    Args:
        engine: The engines of the request's model.
        traffic: Gets the events of the request.
        release_body: Called when the request's body is no longer needed: with the first byte of an answer, or
            at the end. It may be called again.
        uses: The request's place in the limits and budgets of its API key.
    """

    _send: Send

    def __init__(
        self,
        engine: EngineClient[EngineRequest],
        request: EngineRequest,
        traffic: Traffic,
        release_body: Callable[[], None] = lambda: None,
        uses: Sequence[Use] = (),
    ) -> None:
        super().__init__()
        self._engine = engine
        self._request = request
        self._dialect = dialect_of(request.operation)
        self._traffic = traffic
        self._release_body = release_body
        self._uses = uses
        self._started = False
        self._ended = False
        self._whole = False
        """Whether a whole answer is being sent."""
        self._sent = b""
        """The last part of the body with an event."""
        self._write_now: WriteNow | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer, or cancel the call if the client leaves first."""
        request, self._send, self._write_now = self._request, send, write_now(scope)
        self._traffic.opened(request)
        if request.wants_stream:
            request.tell_wait = self._tell_wait
        answer = asyncio.ensure_future(self._answer())
        leaving = asyncio.ensure_future(disconnected(receive))
        left = True  # also if Ray cancels this call, which it does when a client leaves
        try:
            rest_s = None if request.timeout_s is None else max(0.0, request.timeout_s - request.waited_s)
            done, _ = await asyncio.wait(
                (answer, leaving), timeout=rest_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not done and self._whole:  # only the client is late, which has to read it
                done, _ = await asyncio.wait((answer, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not done:
                await self._expire(answer)
            left = not answer.done()
        finally:
            # Cancelling the answer closes the call, which aborts its sequences in the engine.
            for task in (answer, leaving):
                task.cancel()
            try:
                results = await asyncio.gather(answer, leaving, return_exceptions=True)
            finally:  # a second cancellation must not leave the request open for ever
                request.outcome = request.outcome or ("abandoned" if left else "error")
                # Break the reference cycle between this response and the request.
                request.tell_wait = request.write_now = None
                self._drop_body()
                for use in self._uses:
                    use.settle(request)
                self._traffic.closed(request)
        if isinstance(results[0], Exception):
            raise results[0]

    async def _expire(self, answer: asyncio.Future[None]) -> None:
        """End the call at the client's deadline, and then send an error."""
        answer.cancel()
        await asyncio.wait((answer,))
        if not answer.cancelled() or self._ended:
            return
        if self._request.outcome is not None:  # only the end of the body is missing
            await self._send_part(b"", more=False)
            return
        assert self._request.timeout_s is not None
        error = deadline_exceeded(self._request.timeout_s)
        await self._send_error(error)

    async def _tell_wait(self, wait: ColdWait) -> None:
        await self._start(HTTPStatus.OK, STREAM_HEADERS)
        sent = self._last_sent()
        if not self._dialect.ends(sent):  # only the end of the body is missing
            await self._send_part(self._dialect.waiting(self._request, wait, sent))

    async def _answer(self) -> None:
        try:
            with only_own_cancellation():
                async with self._engine.call(self._request) as reply:
                    if reply.stream is not None:
                        await self._send_stream(reply.status, reply.headers, reply.stream)
                        return
            # The engine has ended the call, so a client that reads slowly takes no place there.
            if reply.status >= HTTPStatus.BAD_REQUEST:
                await self._send_error(ApiError.from_body(reply.status, reply.body, reply.headers))
            else:
                await self._send_whole(reply.status, reply.body, reply.headers)
        except ApiError as error:
            if error.status in _REFUSALS:
                self._traffic.rejected(self._request, error)
            await self._send_error(error)
        except Exception:
            if not self._started:
                raise
            await self._send_failure()

    async def _send_stream(
        self, status: int, headers: Mapping[str, str], stream: AsyncIterator[bytes]
    ) -> None:
        await self._start(status, {**STREAM_HEADERS, **headers})
        before = last = b""
        written = self._write_now  # parts that are written directly do not come here
        try:
            async for chunk in stream:
                if _is_comment(chunk):
                    await self._send_part(chunk)
                    continue
                if not last:
                    first = self._dialect.after_wait(chunk) if self._sent else chunk  # sent: frames of a wait
                    chunk = self._request.trace.comment() + first  # noqa: PLW2901
                await self._send_part(chunk)
                if not last:
                    self._first_byte()
                    self._request.write_now = written
                before, last = last, chunk
                if written is not None and written.last:
                    before, written.last = written.last, b""
        except Exception:
            await self._send_failure()
        else:
            await self._send_part(self._request.trace.comment(), more=False)
        finally:
            if self._dialect.ends(last):  # clients may leave with it, before the engine's stream has ended
                self._request.outcome = "error" if self._dialect.failed(before, last) else "ok"

    async def _send_whole(self, status: int, body: bytes, extra: Mapping[str, str]) -> None:
        self._whole = True
        if status < HTTPStatus.BAD_REQUEST:
            self._first_byte()
        if not self._started:
            await self._start(status, {"Content-Type": JSON, "Content-Length": str(len(body)), **extra})
            await self._send_part(body, more=False)
        else:
            # A line break would end the event's data; in JSON it can only stand between two tokens.
            await self._send_part(b"data: " + body.replace(b"\n", b" ") + b"\n\n" + DONE, more=False)
        self._request.outcome = status_outcome(status)

    async def _send_error(self, error: ApiError) -> None:
        if not self._started:
            body = self._dialect.error_body(error, self._request.request_id)
            await self._send_whole(error.status, body, error.headers)
        else:
            last = self._dialect.last_frames(error, self._request, self._last_sent())
            await self._send_part(last, more=False)
            self._request.outcome = status_outcome(error.status)

    def _last_sent(self) -> bytes:
        return (self._write_now.last if self._write_now is not None else b"") or self._sent

    async def _send_failure(self) -> None:
        # The status has been sent. A stream that just stopped would look complete to many clients.
        logger.exception("request %s: failed within its stream", self._request.request_id)
        last = self._dialect.last_frames(stream_failed(), self._request, self._last_sent())
        await self._send_part(last, more=False)

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        if not self._started:
            self._started = True
            for use in self._uses:
                headers = {**headers, **use.headers}
            raw = [
                (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()
            ]
            await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def _send_part(self, body: bytes, *, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
        self._ended = not more
        if not _is_comment(body):
            self._sent = body

    def _first_byte(self) -> None:
        self._request.ttft_s = self._request.waited_s
        self._drop_body()
        self._traffic.first_byte(self._request)

    def _drop_body(self) -> None:
        self._request.release_body()
        self._release_body()


async def disconnected(receive: Receive) -> None:
    """Wait until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def stays() -> Never:
    """Receive no message: a client without a connection leaves only by cancelling."""
    await asyncio.Future()
    raise AssertionError("nothing ends this future")


def _is_comment(part: bytes) -> bool:
    """Return whether a part of a stream has no event."""
    return part.startswith(b":") and b"\ndata:" not in part


def status_outcome(status: int) -> Outcome:
    """Return the outcome of a request that was answered with this HTTP status."""
    if status < HTTPStatus.BAD_REQUEST:
        return "ok"
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rejected"
    return "error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "client_error"


class WriteNow:
    """Writes to the connection that `cycle` answers on."""

    __slots__ = ("_cycle", "_flow", "_transport", "last")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle, self._flow, self._transport = cycle, cycle.flow, cycle.transport
        self.last = b""
        """The last part that was written."""

    def __call__(self, part: bytes) -> bool:
        """Write a part of a body that has begun. Returns whether it was written.

        It is not written if the client reads too slowly or has left, or if the body is not sent in chunks.
        Then the caller must use `send`.
        """
        if self._flow.write_paused or not self._cycle.chunked_encoding or self._transport.is_closing():
            return False
        if part:  # an empty chunk would be the body's end
            self._transport.write(b"%x\r\n%b\r\n" % (len(part), part))
            self.last = part
        return True

    def abort(self) -> None:
        """Close the connection at once. A `send` that waits for the client returns."""
        self._transport.abort()

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Become None in another process: Ray's own proxy pickles the scope for the replica that answers."""
        return type(None), ()


class WriteNowMiddleware:
    """Adds the extension to the scope if `send` is uvicorn's own, and fixes answers to HTTP/1.0 clients.

    uvicorn sends a body of unknown length in chunks. HTTP/1.0 clients cannot read chunks (RFC 9112, 6.1), so
    for them the end of the connection is the end of the body. This must be the outermost middleware.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        cycle: Any = getattr(send, "__self__", None)
        if isinstance(cycle, RequestResponseCycle):
            scope = {**scope, "extensions": {**scope.get("extensions", {}), _EXTENSION: WriteNow(cycle)}}
            if scope["http_version"] == "1.0":
                send = _without_chunks(cycle)
        await self._app(scope, receive, send)


def _without_chunks(cycle: RequestResponseCycle) -> Send:
    """Return a `send` without chunks. uvicorn closes each HTTP/1.0 connection after the answer."""
    known = False

    async def send(message: Message) -> None:
        nonlocal known
        if message["type"] == "http.response.start":
            known = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            if not known:
                cycle.chunked_encoding = False  # None would be made True
        elif not known:
            # uvicorn counts the bytes of a body without chunks down to 0.
            cycle.expected_content_length = len(message.get("body", b""))
        await cycle.send(message)  # type: ignore[arg-type]  # uvicorn has a type for each

    return send


def write_now(scope: Scope) -> WriteNow | None:
    """Return the extension, if the server has it."""
    found: WriteNow | None = scope.get("extensions", {}).get(_EXTENSION)
    return found
