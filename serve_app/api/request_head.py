"""The head of a request: its id, its deadline, its trace, and who sent it.

Ray decodes some headers as UTF-8, and answers 500 if that fails. Other headers change how Ray handles the
request: at `X-Request-Timeout-Seconds` Ray would cut a stream without an error. The application finds this
timeout in the scope instead.

`RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH` names `middlewares`. Ray calls `middlewares` for the server of
each ingress replica and for its own proxy, and wraps the result around its own middleware.
"""

from __future__ import annotations

import re
import secrets
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve_app.api.dialect import dialect_at, route_path
from serve_app.api.engine_response import WriteNowMiddleware
from serve_app.api.errors import TRACE_ID, ApiError, invalid_value
from serve_app.api.request_trace import SHOW_HEADER, RequestTrace
from serve_app.api.trace import UNTRACED, Trace, TraceContext
from serve_app.patches.uvicorn import ignore_upgrades
from serve_app.settings.caller import ANYONE, LANES, Caller, Lane
from serve_app.settings.keys_file import ApiKey
from serve_app.settings.settings_error import shown
from serve_app.wire import spans as names
from serve_app.wire.spans import Link, new_span_id

_PATHS_WITH_SLASH = ("/", "/ui/")
USABLE_ID = re.compile(rb"[\x21-\x7e]{1,256}")
"""Ids that break neither a header nor a log line."""


class RequestMiddleware:
    """Gives each request an id, by default the client's, answers `HEAD`, and ignores slashes at a path's end.

    Sets `request.state.request_id`, `arrived` (`perf_counter` seconds) and `head`. FastAPI's routes do
    not answer `HEAD`. Here `HEAD` gets the answer to `GET` without the body (RFC 9110, section 9.3.2).

    Args:
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


def takes_gzip(request: Request) -> bool:
    """Return whether the client accepts an answer with gzip (RFC 9110, 12.5.3)."""
    accepted = request.headers.get("accept-encoding", "")
    return bool(re.search(r"(?i)(^|,)\s*gzip\s*($|,|;\s*q=(1|0?\.\d*[1-9]))", accepted))


def _given_id(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and USABLE_ID.fullmatch(value):
            return bytes(value).decode("ascii")
    return None


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
    """Return the middlewares for Ray Serve's HTTP servers, the outermost last.

    Call this before the server starts: Ray has no hook for the server's own protocol.
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


LANE_HEADER = "X-Tideserve-Lane"
"""With this header a client lowers the lane of a request."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """Who sent a request, and what it brought beside its body."""

    request_id: str
    caller: Caller = ANYONE
    key: ApiKey | None = None
    """The entry of its API key; None on a server without keys."""
    cache_salt: str = field(default="", repr=False)
    arrived: float = field(default_factory=time.perf_counter)
    timeout_s: float | None = None
    """Its deadline, in seconds after its arrival; None without one."""
    trace: Trace = UNTRACED
    context: TraceContext | None = None
    conversation: str = ""
    """The value of the header that names the conversation; "" without one."""

    @property
    def group(self) -> str | None:
        """The group of its body in `BodyMemory`; None until its model is known."""
        return None if self.key is None else f"API key {self.key.name!r}"


def head_of(http: Request, conversation_header: str | None = None) -> RequestHead:
    """Return the sender of an HTTP request. Raises ApiError 400 for a lane that does not exist.

    `conversation_header` is the header that names the conversation, if there is one.
    """
    state = http.state
    return RequestHead(
        state.request_id,
        _lowered(getattr(state, "caller", ANYONE), http),
        key_of(http),
        getattr(state, "cache_salt", ""),
        state.arrived,
        request_timeout_s(http.scope),
        getattr(state, "trace", UNTRACED),
        TraceContext.of(http.scope["headers"]),
        http.headers.get(conversation_header, "") if conversation_header else "",
    )


def key_of(http: Request) -> ApiKey | None:
    """Return the entry of the client's API key; None on a server without keys."""
    found: ApiKey | None = getattr(http.state, "key", None)
    return found


def _lowered(caller: Caller, request: Request) -> Caller:
    """Return the caller in the lane that the client asks for, if it is lower. Raises ApiError 400."""
    asked = request.headers.get(LANE_HEADER)
    if asked is None:
        return caller
    lane: Lane | None = next((each for each in LANES if each == asked), None)
    if lane is None:
        known = ", ".join(LANES)
        raise ApiError(400, f"{LANE_HEADER} = {shown(asked)}: must be one of {known}", code="invalid_value")
    return caller.lowered_to(lane)


@dataclass(frozen=True, slots=True)
class RequestTraces:
    """Begins and ends the traces of requests."""

    sampling_ratio: float | None = None
    """The sampled share of the traces without a client's span; None if no trace goes to a collector."""
    record_prompts: bool = False
    export: Callable[[RequestTrace], None] = lambda _: None
    """Called with each trace that is kept."""

    def begin(
        self, path: str, headers: Sequence[tuple[bytes, bytes]], started: float, links: Sequence[Link] = ()
    ) -> RequestTrace | None:
        shown = (SHOW_HEADER, b"1") in headers
        if self.sampling_ratio is None and not shown:
            return None
        client = TraceContext.of(headers)
        trace_id = secrets.token_hex(16) if client is None else client.trace_id
        if client is None:
            sampled = shown or int(trace_id[16:], 16) < (self.sampling_ratio or 0.0) * 2**64
        else:
            sampled = shown or client.sampled
        parent = f"00-{trace_id}-{new_span_id()}-{int(sampled):02x}"
        context = TraceContext(parent, "" if client is None else client.tracestate)
        trace = RequestTrace(
            context,
            "" if client is None else client.span_id,
            started,
            exported=self.sampling_ratio is not None,
            shown=shown,
            record_prompts=self.record_prompts,
            links=links,
            path=path,
        )
        trace.begin(names.RECEIVE, since=started)
        return trace

    def end(self, trace: RequestTrace) -> None:
        """Finish `trace`, and export it if it is kept."""
        trace.finish()
        if trace.kept:
            self.export(trace)


class TraceMiddleware:
    """Traces each `POST`, as `request.state.trace`. `RequestMiddleware` must be outside of it."""

    def __init__(self, app: ASGIApp, traces: RequestTraces) -> None:
        self._app = app
        self._traces = traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        trace = None
        if scope["type"] == "http" and scope["method"] == "POST":
            trace = self._traces.begin(route_path(scope), scope["headers"], scope["state"]["arrived"])
        context = TraceContext.of(scope.get("headers", ())) if trace is None else trace.context
        TRACE_ID.set("" if context is None else context.trace_id)
        if trace is None:
            await self._app(scope, receive, send)
            return

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                trace.note_status(message["status"])
            await send(message)

        scope["state"]["trace"] = trace
        try:
            await self._app(scope, receive, noted)
        except Exception:
            if trace.status is None:
                trace.note_status(HTTPStatus.INTERNAL_SERVER_ERROR)  # it is sent outside of all middleware
            raise
        finally:
            self._traces.end(trace)
