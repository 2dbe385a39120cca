"""Middleware of all requests: request ids, `HEAD` for paths that answer `GET`, and slashes at the end."""

import re
import time
import uuid

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve_app.api.dialect import dialect_at

_PATHS_WITH_SLASH = ("/", "/ui/")
USABLE_ID = re.compile(rb"[\x21-\x7e]{1,256}")
"""Ids that break neither a header nor a log line."""


class RequestMiddleware:
    """Gives each request an id, by default the client's, answers `HEAD`, and ignores slashes at a path's end.

    Sets `request.state.request_id`, `arrived` (`perf_counter` seconds) and `head`. FastAPI's routes do
    not answer `HEAD`. Here `HEAD` gets the answer to `GET` without the body (RFC 9110, section 9.3.2).

    Args:
        app: The inner application.
        add_header: Whether to add `X-Request-ID` to the response. False behind Ray Serve, which adds it.
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
        # A redirect would name a scheme and a host that the client may not reach, such as http behind TLS.
        if (route := route_path(scope)).endswith("/") and route not in _PATHS_WITH_SLASH:
            scope = {**scope, "path": scope.get("root_path", "") + (route.rstrip("/") or "/")}
        head = state["head"] = scope["method"] == "HEAD"
        own = dialect_at(route_path(scope)).id_header
        names = [name for name in ("X-Request-ID" if self._add_header else "", own) if name]

        async def changed(message: Message) -> None:
            if message["type"] == "http.response.start":
                for name in names:
                    MutableHeaders(scope=message)[name] = request_id
            elif head:
                message = {**message, "body": b""}
            await send(message)

        if head:
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, changed if head or names else send)


def route_path(scope: Scope) -> str:
    """Return the path below the application's `route_prefix`, as routes see it."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if path.startswith(f"{root}/") else path


def _given_id(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and USABLE_ID.fullmatch(value):
            return bytes(value).decode("ascii")
    return None
