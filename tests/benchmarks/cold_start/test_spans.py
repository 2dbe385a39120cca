import gzip
import urllib.request

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from benchmarks.cold_start.spans import Span, received


def export() -> bytes:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    attribute = resource.resource.attributes.add()
    attribute.key, attribute.value.string_value = "vllm.process_id", "42"
    span = resource.scope_spans.add().spans.add()
    span.name, span.trace_id = "Load weights", bytes([171] * 16)
    span.start_time_unix_nano, span.end_time_unix_nano = 1_000_000_000, 2_500_000_000
    data: bytes = request.SerializeToString()
    return data


@pytest.mark.parametrize("compressed", [False, True])
def test_spans_are_received_with_their_process_and_trace(compressed: bool) -> None:
    data = gzip.compress(export()) if compressed else export()
    headers = {"Content-Encoding": "gzip"} if compressed else {}
    with received() as receiver:
        request = urllib.request.Request(receiver.url, data, headers)
        with urllib.request.urlopen(request) as reply:
            assert reply.status == 200

    assert receiver.found == [Span("ab" * 16, 42, "Load weights", 1.0, 2.5)]
