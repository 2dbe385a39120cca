"""Every response carries `X-Request-ID`: the client's own, if it sent a usable one, or a new one."""

from __future__ import annotations

import re
import time
import uuid

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "X-Request-ID"
USABLE = re.compile(rb"[\x21-\x7e]{1,256}")
"""An id that can break neither a header nor a line of a log."""


class RequestIdMiddleware:
    """Sets `request.state.request_id` and `request.state.arrived` (`perf_counter` seconds).

    Args:
        app: The application within.
        add_header: Whether to put the id on the response. Ray Serve does so itself, and would then
            send it twice.
    """

    def __init__(self, app: ASGIApp, add_header: bool) -> None:
        self._app = app
        self._add_header = add_header

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Give the request an id, and the response with it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _given(scope) or uuid.uuid4().hex
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        state["arrived"] = time.perf_counter()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id if self._add_header else send)


def _given(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and USABLE.fullmatch(value):
            given: str = value.decode("ascii")
            return given
    return None
