"""Decide which web pages may use the API.

A browser lets any page send some requests to a server on its machine, and hides only the answers (Fetch
Standard, "CORS protocol"). If clients need no API key, three headers reveal such a request. `Host` names the
page's own site after DNS rebinding. `Origin` names the page. No form sends the `Content-Type` of JSON.
"""

import ipaddress
import re
from collections.abc import Iterable

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve_app.api.dialect import JSON, error_response, route_path
from serve_app.api.errors import ApiError
from serve_app.settings.settings_error import shown
from serve_app.settings.tree import HttpSettings

PROBES = frozenset(("/health", "/ready"))
"""Load balancers ask for these paths by an address that need not be an allowed host."""
_EXPOSED = (
    b"X-Request-ID, Request-Id, Retry-After, Retry-After-Ms, X-Should-Retry, X-Tideserve-Lane, "
    b"X-RateLimit-Limit-Requests, X-RateLimit-Remaining-Requests, X-RateLimit-Reset-Requests, "
    b"X-RateLimit-Limit-Tokens, X-RateLimit-Remaining-Tokens, X-RateLimit-Reset-Tokens, "
    b"X-Tideserve-Budget-Limit, X-Tideserve-Budget-Remaining, X-Tideserve-Budget-Reset"
)
_METHODS = b"GET, HEAD, POST, PUT, DELETE"
_MAX_AGE_S = b"7200"
"""How long a browser may cache a preflight. Chromium allows no more."""
_HEADER_NAMES = re.compile(rb"[A-Za-z0-9_, -]+")
_CHANGES_NOTHING = ("GET", "HEAD", "OPTIONS")

_RawHeaders = list[tuple[bytes, bytes]]


def is_loopback(address: str | None) -> bool:
    """Whether only this machine can connect to a server that listens on `address`."""
    try:
        return address == "localhost" or ipaddress.ip_address(address or "").is_loopback
    except ValueError:
        return False


class BrowserMiddleware:
    """Refuses hosts and pages that are not allowed, and sends the CORS headers of allowed pages.

    A request without `Origin` costs one pass over its headers. Its answer costs nothing.

    Args:
        http: The allowed hosts and origins.
        listens_on: The address that the server listens on; None if it is not known.
        keyless: Whether clients need no API key.
    """

    def __init__(self, app: ASGIApp, http: HttpSettings, listens_on: str | None, keyless: bool) -> None:
        self._app = app
        own = () if listens_on is None else (f"[{listens_on}]" if ":" in listens_on else listens_on,)
        names = dict.fromkeys(("localhost", "127.0.0.1", "[::1]", *own))
        loopback = is_loopback(listens_on)
        self._hosts = http.allowed_hosts or (tuple(names) if loopback else ("*",))
        self._origins = frozenset(origin.encode() for origin in http.cors_origins)
        self._closed = loopback and keyless

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        hosts: list[bytes] = []
        origin = None
        preflight = False
        for name, value in scope["headers"]:
            if name == b"host":
                hosts.append(value)
            elif name == b"origin":
                origin = value
            elif name == b"access-control-request-method":
                preflight = scope["method"] == "OPTIONS"
        try:
            if "*" not in self._hosts and route_path(scope) not in PROBES:
                self._check_hosts(hosts)
            cors = [] if origin is None else self._check_origin(origin, scope["method"], hosts, preflight)
        except ApiError as error:
            await error_response(error, scope)(scope, receive, send)
            return
        if not cors:
            await self._app(scope, receive, send)
        elif preflight:
            reply = Response(status_code=204)
            reply.raw_headers = cors + _preflight_headers(scope["headers"])
            await reply(scope, receive, send)
        else:
            cors.append((b"access-control-expose-headers", _EXPOSED))
            scope.setdefault("state", {})["cors"] = cors

            async def with_cors(message: Message) -> None:
                if message["type"] == "http.response.start":
                    message = {**message, "headers": [*message.get("headers", ()), *cors]}
                await send(message)

            await self._app(scope, receive, with_cors)

    def _check_hosts(self, given: list[bytes]) -> None:
        """Raise ApiError 421 for a host that is not allowed. HTTP/1.0 clients may leave `Host` out."""
        for value in given:
            text = value.decode("latin-1").lower()
            name, colon, port = text.rpartition(":")
            name = (name if colon and (port.isdecimal() or not port) else text).removesuffix(".")
            if name in self._hosts:
                continue
            if not any(each.startswith("*.") and name.endswith(each[1:]) for each in self._hosts):
                raise ApiError(
                    421,
                    f"Host = {shown(text)}: this server answers as {', '.join(self._hosts)}; "
                    "the setting http.allowed_hosts names others.",
                    code="host_not_allowed",
                )

    def _check_origin(self, origin: bytes, method: str, hosts: list[bytes], preflight: bool) -> _RawHeaders:
        """Return the headers that let a page read the answer; none for a page that may not.

        Raises:
            ApiError: 403 for a preflight of a page that is not allowed. On a loopback address without API
                keys, also for other requests of such a page that may change something.
        """
        if b"*" in self._origins:
            return [(b"access-control-allow-origin", b"*")]
        if origin in self._origins:
            return [(b"access-control-allow-origin", origin), (b"vary", b"Origin")]
        harmless = method in _CHANGES_NOTHING or not self._closed
        # This server's own pages, such as /docs, may. Do not compare the scheme, which a TLS proxy changes.
        if preflight or not (harmless or [origin.partition(b"://")[2]] == hosts):
            raise ApiError(
                403,
                f"Origin = {shown(origin.decode('latin-1'))}: pages of this origin may not use this server; "
                "the setting http.cors_origins lists those that may.",
                code="origin_not_allowed",
            )
        return []


def _preflight_headers(asked: Iterable[tuple[bytes, bytes]]) -> _RawHeaders:
    """Return the headers for a preflight. Any header is allowed: the API uses no cookies."""
    headers = [(b"access-control-allow-methods", _METHODS), (b"access-control-max-age", _MAX_AGE_S)]
    for name, value in asked:
        if name == b"access-control-request-headers" and _HEADER_NAMES.fullmatch(value):
            headers.append((b"access-control-allow-headers", value))
        elif name == b"access-control-request-private-network" and value == b"true":
            headers.append((b"access-control-allow-private-network", b"true"))
    return headers


def check_content_type(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuse a body that is not declared as JSON, because any page may send text or a form.

    A page can also send a body without `Content-Type`. curl declares a form by default.

    Raises:
        ApiError: 415.
    """
    given = [value for name, value in headers if name == b"content-type"]
    if len(given) == 1 and given[0].partition(b";")[0].strip().lower() == JSON.encode():
        return
    told = ", ".join(value.decode("latin-1") for value in given)
    raise ApiError(
        415,
        f"Content-Type{f' = {shown(told)}' if given else ''}: must be {JSON}"
        f"{'' if given else ', and is not given'}. With curl: -H 'Content-Type: {JSON}'.",
        code="unsupported_media_type",
    )
