"""An OpenTelemetry collector's receiver on the official protobufs: gRPC and HTTP, in the test's process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)


@dataclass(frozen=True, slots=True)
class Received:
    """One span as a collector stores it. Times in seconds."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start: float
    end: float
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    links: list[tuple[str, str]]
    failed: bool
    resource: dict[str, Any]
    kind: int
    tracestate: str


def plain(attributes: Any) -> dict[str, Any]:
    found = {}
    for pair in attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind) if kind else None
        found[pair.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found


@dataclass(slots=True)
class Receiver:
    """All spans that came, and the headers of each export."""

    url: str = ""
    spans: list[Received] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, request: ExportTraceServiceRequest, headers: dict[str, str]) -> None:
        with self.lock:
            self.headers.append(headers)
            for group in request.resource_spans:
                resource = plain(group.resource.attributes)
                for span in (span for scope in group.scope_spans for span in scope.spans):
                    self.spans.append(
                        Received(
                            span.name,
                            span.trace_id.hex(),
                            span.span_id.hex(),
                            span.parent_span_id.hex(),
                            span.start_time_unix_nano / 1e9,
                            span.end_time_unix_nano / 1e9,
                            plain(span.attributes),
                            [(event.name, plain(event.attributes)) for event in span.events],
                            [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
                            span.status.code == 2,
                            resource,
                            span.kind,
                            span.trace_state,
                        )
                    )

    def trace(self, trace_id: str) -> list[Received]:
        with self.lock:
            return sorted((s for s in self.spans if s.trace_id == trace_id), key=lambda span: span.start)

    def wait(
        self, found: Callable[[list[Received]], Any], trace_id: str | None = None, limit_s: float = 30.0
    ) -> list[Received]:
        """The spans, or those of one trace, once `found` holds of them."""
        deadline = time.monotonic() + limit_s
        while True:
            with self.lock:
                spans = list(self.spans)
            spans = spans if trace_id is None else self.trace(trace_id)
            if found(spans):
                return spans
            assert time.monotonic() < deadline, [(span.name, span.attributes) for span in spans]
            time.sleep(0.1)


class _Servicer(TraceServiceServicer):  # type: ignore[misc]
    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        self._receiver.take(request, dict(context.invocation_metadata()))
        return ExportTraceServiceResponse()


@contextmanager
def grpc_receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    server = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(_Servicer(receiver), server)
    receiver.url = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None).wait()


@contextmanager
def http_receiver() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.take(
                ExportTraceServiceRequest.FromString(body), {"path": self.path, **dict(self.headers)}
            )
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def coverage(spans: list[Received], trace_id: str) -> float:
    """The share of the root's time that its descendants cover."""
    mine = {span.span_id: span for span in spans if span.trace_id == trace_id}
    (root,) = (span for span in mine.values() if span.parent_id not in mine)
    covered, at = 0.0, root.start
    for span in sorted((s for s in mine.values() if s is not root), key=lambda span: span.start):
        begin, end = max(at, span.start), min(root.end, span.end)
        if end > begin:
            covered, at = covered + end - begin, end
    return covered / (root.end - root.start)
