"""Remove request headers that Ray Serve cannot read, or must not obey.

Ray decodes some headers as UTF-8, and answers 500 if that fails. Other headers change how Ray handles the
request: at `X-Request-Timeout-Seconds` Ray would cut a stream without an error. The application finds this
timeout in the scope instead.

`RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH` names `middlewares`. Ray calls `middlewares` for the server of
each ingress replica and for its own proxy, and wraps the result around its own middleware.
"""

import re

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from serve_app.api.engine_response import WriteNowMiddleware
from serve_app.api.errors import invalid_value
from serve_app.api.middleware import USABLE_ID
from serve_app.patches.uvicorn import ignore_upgrades

TIMEOUT_HEADER = "X-Request-Timeout-Seconds"
MOST_TIMEOUT_S = 86_400.0
_TIMEOUT = TIMEOUT_HEADER.lower().encode()
_TIMEOUT_EXTENSION = "tideserve.request_timeout"
_SECONDS = re.compile(rb"[0-9]{1,10}(\.[0-9]{0,10})?|\.[0-9]{1,10}")
_REQUEST_ID = b"x-request-id"
_OBEYED_BY_RAY = frozenset(
    (
        _TIMEOUT,
        b"x-request-disconnect-disabled",  # Ray would not cancel the request of a client that has left
        b"serve-multiplexed-model-id",  # Ray's router would look for a replica with this model for a second
    )
)
_READ_BY_RAY = frozenset((b"x-session-id", b"traceparent", b"tracestate"))


class RayHeadersMiddleware:
    """Removes headers that Ray cannot read or would obey, and unusable request ids, which Ray replaces."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            headers = scope["headers"]
            kept = [header for header in headers if _may_stay(*header)]
            if len(kept) < len(headers):
                extensions = {**scope.get("extensions", {}), _TIMEOUT_EXTENSION: _timeouts(headers)}
                scope = {**scope, "headers": kept, "extensions": extensions}
        await self._app(scope, receive, send)


def middlewares() -> list[Middleware]:
    """Return the middlewares for Ray Serve's HTTP servers, the outermost last. Ray calls this before it
    starts a server, and has no other hook for the server's own protocol.
    """
    ignore_upgrades()
    return [Middleware(RayHeadersMiddleware), Middleware(WriteNowMiddleware)]


def request_timeout_s(scope: Scope) -> float | None:
    """Return the client's deadline, in seconds after the arrival; None if the client gave none.

    Raises:
        ApiError: 400 for an invalid value.
    """
    given = scope.get("extensions", {}).get(_TIMEOUT_EXTENSION) or _timeouts(scope["headers"])
    if not given:
        return None
    seconds = float(given[0]) if len(given) == 1 and _SECONDS.fullmatch(given[0]) else 0.0
    if 0 < seconds <= MOST_TIMEOUT_S:
        return seconds
    told = ", ".join(value.decode("latin-1") for value in given)
    must = f"must be a number of seconds above 0 and at most {MOST_TIMEOUT_S:g}, given once, such as 2.5"
    raise invalid_value(TIMEOUT_HEADER, told, must)


def _timeouts(headers: list[tuple[bytes, bytes]]) -> list[bytes]:
    return [value for name, value in headers if name == _TIMEOUT]


def _may_stay(name: bytes, value: bytes) -> bool:
    if name == _REQUEST_ID:
        return USABLE_ID.fullmatch(value) is not None
    name = name.replace(b"_", b"-")
    return name not in _OBEYED_BY_RAY and (value.isascii() or name not in _READ_BY_RAY)
