"""Spans on their way to a collector: real exporters of the SDK, and real receivers on loopback."""

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from serve_app.settings.settings_error import SettingsError
from serve_app.settings.telemetry import TraceSettings
from serve_app.telemetry import traces
from serve_app.telemetry.collector import Collector
from serve_app.telemetry.traces import MOST_WAITING, SpanSender
from serve_app.wire.spans import Event, Link, Span
from tests.otlp_receiver import grpc_receiver, http_receiver

SPAN = Span(
    "attempt",
    "0af7651916cd43dd8448eb211c80319c",
    "b7ad6b7169203331",
    "00f067aa0ba902b7",
    1_700_000_000_000_000_000,
    1_700_000_000_250_000_000,
    {"tideserve.replica": "r1", "n": 2, "why": ["moved"]},
    [Event("first_token", 1_700_000_000_100_000_000, {"a": True})],
    [Link("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b8")],
    "CLIENT",
    "gone",
    tracestate="rojo=00f067aa0ba902b7,0a@b=c ; d",
)
TELEMETRY = "telemetry.traces"


def collector(environment: dict[str, str] | None = None, **settings: Any) -> Collector:
    found = Collector.of(TraceSettings(enabled=True, **settings), environment or {})
    assert found is not None
    return found


RECEIVERS = {"grpc": grpc_receiver, "http/protobuf": http_receiver}


@pytest.mark.parametrize("protocol", RECEIVERS)
def test_a_span_comes_whole_by_both_protocols(protocol: str, tmp_path: Path) -> None:
    secret = tmp_path / "headers"
    secret.write_text("X-Token = secret%20one\n\n")
    with RECEIVERS[protocol]() as received:
        to = collector(
            endpoint=received.url,
            protocol=protocol,
            headers_file=str(secret),
            resource_attributes={"deployment.environment": "test"},
        )
        sender = SpanSender(to, "ingress", "i1")
        sender.put(1, lambda: [SPAN])
        sender.close(10)

    (span,) = received.spans
    assert (span.name, span.trace_id, span.span_id, span.parent_id) == (
        SPAN.name,
        SPAN.trace_id,
        SPAN.span_id,
        SPAN.parent_id,
    )
    assert (span.end - span.start, span.kind, span.failed) == (pytest.approx(0.25), 3, True)
    assert span.tracestate == SPAN.tracestate
    assert span.attributes == {"tideserve.replica": "r1", "n": 2, "why": ["moved"]}
    assert span.events == [("first_token", {"a": True})]
    assert span.links == [("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b8")]
    wanted = {"service.name": "tideserve", "service.instance.id": "i1", "deployment.environment": "test"}
    assert wanted.items() <= span.resource.items()
    headers = {name.lower(): value for name, value in received.headers[0].items()}
    assert headers["x-token"] == "secret one"
    assert protocol == "grpc" or headers["path"] == "/v1/traces"
    assert "secret" not in repr(to)


@contextmanager
def hanging_port() -> Iterator[str]:
    """A port that takes connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        held: list[socket.socket] = []

        def accept() -> None:
            try:
                while True:
                    held.append(server.accept()[0])
            except OSError:
                pass

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        for each in held:
            each.close()


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_hanging_collector_drops_spans_and_is_named_once(
    protocol: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "1")
    dropped: list[int] = []
    with hanging_port() as url, caplog.at_level(logging.WARNING):
        sender = SpanSender(collector(endpoint=url, protocol=protocol), "ingress", "i1", dropped.append)
        began = time.perf_counter()
        for _ in range(2 * MOST_WAITING):
            sender.put(1, lambda: [SPAN])
        spent_s = time.perf_counter() - began
        assert sum(dropped) >= MOST_WAITING - 1024  # what did not fit was dropped at once
        sender.close(3)

    assert spent_s < 10.0  # waiting for the collector, it would be over 30 s for each batch
    # OpenTelemetry's exporter of an earlier test may still log.
    (line,) = [record.getMessage() for record in caplog.records if record.name == "ray.serve"]
    assert f"the collector at {url}" in line
    assert "llm_trace_spans_dropped_total" in line


def test_one_span_that_cannot_be_sent_does_not_end_the_thread() -> None:
    dropped: list[int] = []

    def broken() -> list[Span]:
        raise ValueError("broken")

    with grpc_receiver() as received:
        sender = SpanSender(collector(endpoint=received.url), "ingress", "i1", dropped.append)
        sender.put(3, broken)
        while not dropped:
            time.sleep(0.01)
        sender.put(1, lambda: [SPAN])
        sender.close(10)

    assert dropped == [3]
    assert len(received.spans) == 1


OTLP = "OTEL_EXPORTER_OTLP_"


@pytest.mark.parametrize(
    ("environment", "settings", "endpoint"),
    [
        ({}, {}, "http://localhost:4317"),
        ({}, {"protocol": "http/protobuf"}, "http://localhost:4318/v1/traces"),
        ({}, {"endpoint": "http://c:1", "protocol": "http/protobuf"}, "http://c:1/v1/traces"),
        ({}, {"endpoint": "http://c:1/otlp", "protocol": "http/protobuf"}, "http://c:1/otlp"),
        ({f"{OTLP}ENDPOINT": "http://e:1"}, {}, "http://e:1"),
        (
            {f"{OTLP}ENDPOINT": "http://e:1/p/", f"{OTLP}PROTOCOL": "http/protobuf"},
            {},
            "http://e:1/p/v1/traces",
        ),
        ({f"{OTLP}ENDPOINT": "http://e:1", f"{OTLP}TRACES_ENDPOINT": "http://t:1"}, {}, "http://t:1"),
        ({f"{OTLP}TRACES_ENDPOINT": "http://t:1"}, {"endpoint": "http://c:1"}, "http://c:1"),
    ],
)
def test_a_setting_wins_over_the_standard_variables(
    environment: dict[str, str], settings: dict[str, Any], endpoint: str
) -> None:
    assert collector(environment, **settings).endpoint == endpoint


def test_standard_variables_give_what_no_setting_gives() -> None:
    found = collector(
        {
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": "0.25",
            "OTEL_SERVICE_NAME": "chat",
            "OTEL_RESOURCE_ATTRIBUTES": "team=a%20b,region=eu",
            f"{OTLP}HEADERS": "x-key=1",
        },
        resource_attributes={"region": "us"},
    )

    assert (found.sampling_ratio, found.service_name) == (0.25, "chat")
    assert found.resource == {"team": "a b", "region": "us"}
    assert found.headers == {"x-key": "1"}
    assert found.variables()["OTEL_RESOURCE_ATTRIBUTES"] == "team=a%20b,region=us"
    assert collector().sampling_ratio == 0.1


@pytest.mark.parametrize(
    ("environment", "settings", "problem"),
    [
        ({f"{OTLP}PROTOCOL": "http/json"}, {}, "OTEL_EXPORTER_OTLP_PROTOCOL = 'http/json': must be grpc"),
        (
            {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"},
            {},
            "OTEL_TRACES_SAMPLER_ARG = '2': must be a number from 0 to 1",
        ),
        ({}, {"headers_file": "/none"}, "headers_file = '/none': cannot be read: FileNotFoundError"),
        ({f"{OTLP}HEADERS": "secret"}, {}, "OTEL_EXPORTER_OTLP_HEADERS: each entry must be name=value"),
    ],
)
def test_an_invalid_value_is_named(
    environment: dict[str, str], settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        collector(environment, **settings)

    assert problem in str(caught.value)
    assert "secret" not in str(caught.value)


def test_traces_are_off_by_default_and_where_the_sdk_is_disabled() -> None:
    assert Collector.of(TraceSettings(), {f"{OTLP}ENDPOINT": "http://e:1"}) is None
    assert Collector.of(TraceSettings(enabled=True), {"OTEL_SDK_DISABLED": "true"}) is None
    assert traces.request_traces(TraceSettings(), {}, "i1").begin("/v1/completions", (), 0.0) is None
