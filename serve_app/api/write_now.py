"""Write parts of a streamed body straight to their connection, past the applications around ours.

An ASGI application hands each part to `send`, a coroutine. Between ours and uvicorn's there are those of Ray
and Starlette, and a task has to wake to await them all. So uvicorn's connection is put into the scope, as an
extension of ours.

uvicorn's connection also sends a body of unknown length in chunks to HTTP/1.0 clients, which cannot read them
(RFC 9112, 6.1). Here the end of such a body is the end of its connection.
"""

from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_EXTENSION = "tideserve.write_now"


class WriteNow:
    """Writes to the connection that `cycle` answers on."""

    __slots__ = ("_cycle", "_flow", "_transport", "last")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle, self._flow, self._transport = cycle, cycle.flow, cycle.transport
        self.last = b""
        """The part that was written last."""

    def __call__(self, part: bytes) -> bool:
        """Write a part of a body that has begun.

        Returns whether it was written. If not, because the client reads too slowly or has left, or because
        the body is not sent in chunks, `send` knows what to do.
        """
        if self._flow.write_paused or not self._cycle.chunked_encoding or self._transport.is_closing():
            return False
        if part:  # an empty chunk would be the body's end
            self._transport.write(b"%x\r\n%b\r\n" % (len(part), part))
            self.last = part
        return True

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Become None in another process: Ray's own proxy pickles the scope for the replica that answers."""
        return type(None), ()


class WriteNowMiddleware:
    """Offers the extension, and sends what HTTP/1.0 clients can read, where `send` is uvicorn's own.

    It has to be the outermost of all middlewares.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on the request, with the extension in its scope."""
        cycle: Any = getattr(send, "__self__", None)
        if isinstance(cycle, RequestResponseCycle):
            scope = {**scope, "extensions": {**scope.get("extensions", {}), _EXTENSION: WriteNow(cycle)}}
            if scope["http_version"] == "1.0":
                send = _without_chunks(cycle)
        await self._app(scope, receive, send)


def _without_chunks(cycle: RequestResponseCycle) -> Send:
    """Send a body of unknown length as it is. uvicorn closes each connection of HTTP/1.0 after the answer."""
    known = False

    async def send(message: Message) -> None:
        nonlocal known
        if message["type"] == "http.response.start":
            known = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            if not known:
                cycle.chunked_encoding = False  # None would be made True
        elif not known:
            # uvicorn counts a body that is not sent in chunks down to 0.
            cycle.expected_content_length = len(message.get("body", b""))
        await cycle.send(message)  # type: ignore[arg-type]  # uvicorn has a type for each

    return send


def write_now(scope: Scope) -> WriteNow | None:
    """The extension, where the server offers it."""
    found: WriteNow | None = scope.get("extensions", {}).get(_EXTENSION)
    return found
