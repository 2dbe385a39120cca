"""The spans that vLLM exports while it starts, received as OTLP over HTTP."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

ENVIRONMENT = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf", "OTEL_BSP_SCHEDULE_DELAY": "200"}
"""What a traced process needs besides its engine argument `otlp_traces_endpoint`. The delay is in ms."""


@dataclass(frozen=True, slots=True)
class Span:
    """One span of one process; times in Unix seconds."""

    trace: str
    """Shared by the processes of one engine: vLLM hands it to the processes that it starts."""
    process: int
    name: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where spans are sent, and those that have come."""

    url: str
    found: list[Span]


def parse(data: bytes) -> list[Span]:
    """Return the spans of one export request."""
    found = []
    for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
        attributes = {each.key: each.value.string_value for each in resource.resource.attributes}
        process = int(attributes.get("vllm.process_id") or 0)
        for scope in resource.scope_spans:
            found += [
                Span(
                    span.trace_id.hex(),
                    process,
                    span.name,
                    span.start_time_unix_nano / 1e9,
                    span.end_time_unix_nano / 1e9,
                )
                for span in scope.spans
            ]
    return found


@contextmanager
def received() -> Iterator[Receiver]:
    """Receive spans while the block runs."""
    spans: list[Span] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                data = gzip.decompress(data)
            spans.extend(parse(data))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 as it is called there
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Receiver(f"http://127.0.0.1:{server.server_address[1]}/v1/traces", spans)
        finally:
            server.shutdown()
            thread.join()
