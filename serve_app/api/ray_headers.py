"""Request headers that Ray Serve reads before the application does, made safe for it.

Ray decodes them as UTF-8 and answers a plain 500 where that fails, so what it could not read is taken
out first. `RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH` names `middlewares`; Ray calls it for the server of
every ingress replica and for its own proxy, and wraps what it returns around its own middleware.
"""

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from serve_app.api.middleware import USABLE_ID
from serve_app.api.write_now import WriteNowMiddleware

_REQUEST_ID = b"x-request-id"
_READ_BY_RAY = frozenset(
    (
        b"x-request-disconnect-disabled",
        b"x-request-timeout-seconds",
        b"x-session-id",
        b"serve-multiplexed-model-id",
    )
)


class RayHeadersMiddleware:
    """Removes unreadable headers, and request ids that are not usable: Ray makes new ones."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on the request without the headers that Ray could not read."""
        if scope["type"] != "lifespan":
            headers = scope["headers"]
            usable = [header for header in headers if _readable(*header)]
            if len(usable) < len(headers):
                scope = {**scope, "headers": usable}
        await self._app(scope, receive, send)


def middlewares() -> list[Middleware]:
    """What Ray Serve puts in front of its HTTP servers, the outermost last."""
    return [Middleware(RayHeadersMiddleware), Middleware(WriteNowMiddleware)]


def _readable(name: bytes, value: bytes) -> bool:
    if name == _REQUEST_ID:
        return USABLE_ID.fullmatch(value) is not None
    return value.isascii() or name.replace(b"_", b"-") not in _READ_BY_RAY
