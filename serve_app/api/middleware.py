"""Middleware of every request: its id, and `HEAD` for every path that answers `GET`."""

import re
import time
import uuid

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

USABLE_ID = re.compile(rb"[\x21-\x7e]{1,256}")
"""An id that can break neither a header nor a line of a log."""


class RequestMiddleware:
    """Gives each request an id, the client's own if it sent a usable one, and answers `HEAD` as `GET`.

    Sets `request.state.request_id` and `request.state.arrived` (`perf_counter` seconds). FastAPI's routes do
    not answer `HEAD`; here it gets what `GET` would, without the body (RFC 9110, section 9.3.2).

    Args:
        app: The application within.
        add_header: Whether to put the id on the response as `X-Request-ID`. Ray Serve does so itself, and
            would then send it twice.
    """

    def __init__(self, app: ASGIApp, add_header: bool) -> None:
        self._app = app
        self._add_header = add_header

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _given_id(scope) or uuid.uuid4().hex
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        state["arrived"] = time.perf_counter()
        head = scope["method"] == "HEAD"

        async def changed(message: Message) -> None:
            if message["type"] == "http.response.start":
                if self._add_header:
                    MutableHeaders(scope=message)["X-Request-ID"] = request_id
            elif head:
                message = {**message, "body": b""}
            await send(message)

        if head:
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, changed if head or self._add_header else send)


def route_path(scope: Scope) -> str:
    """The path as the routes see it: below the application's `route_prefix`."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if path.startswith(f"{root}/") else path


def _given_id(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and USABLE_ID.fullmatch(value):
            return bytes(value).decode("ascii")
    return None
