"""Begins a trace with each request, samples it, and ends it with the answer."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from http import HTTPStatus

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve_app.api.errors import TRACE_ID
from serve_app.api.middleware import route_path
from serve_app.api.request_trace import SHOW_HEADER, RequestTrace
from serve_app.api.trace_context import TraceContext
from serve_app.wire import spans as names
from serve_app.wire.spans import Link, new_span_id


class RequestTraces:
    """Begins and ends the traces of requests.

    Args:
        sampling_ratio: The share of the traces without a client's span that is sampled; None if no trace goes
            to a collector.
        record_prompts: Whether traces have the prompts.
        export: Called with each trace that is kept.
    """

    def __init__(
        self,
        sampling_ratio: float | None = None,
        record_prompts: bool = False,
        export: Callable[[RequestTrace], None] = lambda _: None,
    ) -> None:
        self._ratio = sampling_ratio
        self._record_prompts = record_prompts
        self._export = export

    def begin(
        self, path: str, headers: Sequence[tuple[bytes, bytes]], started: float, links: Sequence[Link] = ()
    ) -> RequestTrace | None:
        """Return the trace of a request to `path`; None if the request is not traced."""
        shown = (SHOW_HEADER, b"1") in headers
        if self._ratio is None and not shown:
            return None
        client = TraceContext.of(headers)
        trace_id = secrets.token_hex(16) if client is None else client.trace_id
        if client is None:
            sampled = shown or int(trace_id[16:], 16) < (self._ratio or 0.0) * 2**64
        else:
            sampled = shown or client.sampled
        parent = f"00-{trace_id}-{new_span_id()}-{int(sampled):02x}"
        context = TraceContext(parent, "" if client is None else client.tracestate)
        trace = RequestTrace(
            context,
            "" if client is None else client.span_id,
            started,
            exported=self._ratio is not None,
            shown=shown,
            record_prompts=self._record_prompts,
            links=links,
            path=path,
        )
        trace.begin(names.RECEIVE, since=started)
        return trace

    def end(self, trace: RequestTrace) -> None:
        """Finish `trace`, and export it if it is kept."""
        trace.finish()
        if trace.kept:
            self._export(trace)


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
