"""The spans of a replica's start, from the phases that it publishes."""

import json

import pytest

from serve_app.engine.startup import Startup
from serve_app.engine.startup_spans import StartupSpans, trace_startup
from serve_app.settings.telemetry import TraceSettings
from serve_app.settings.tree import ModelSettings
from serve_app.wire import spans as names
from serve_app.wire.spans import cold_start_root


class Start:
    """A start on a clock of its own, whose phases are traced."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.environment: dict[str, str] = {}
        self.published: list[str] = []
        self.traced = StartupSpans("tide", "r1", self.published.append, self.environment)
        durations = {"process": 2.0}
        self.startup = Startup(
            "tide", self.traced, lambda: self.now, lambda: self.now, durations, warm_node=True
        )

    def phase(self, name: str, lasts_s: float) -> str:
        """Go through a phase. Returns the `traceparent` that vLLM finds in it."""
        with self.startup.phase(name):
            self.now += lasts_s
            return self.environment["traceparent"]


def test_each_phase_is_a_span_and_the_parent_of_vllms_spans() -> None:
    start = Start()
    parents = [start.phase("imports", 1.0), start.phase("weights_and_kv_cache", 4.0)]
    start.now += 0.5
    start.startup.finish()

    root, process, imports, weights = start.traced.spans
    ids = cold_start_root("r1")
    assert (root.name, root.trace_id, root.span_id, root.parent_id) == (
        "cold start",
        ids.trace_id,
        ids.span_id,
        "",
    )
    assert (root.start, root.end) == (998 * 10**9, 1005_500_000_000)
    assert root.attributes == {names.REQUEST_MODEL: "tide", names.REPLICA: "r1", names.WARM_NODE: True}
    assert [(span.name, span.start // 10**9, span.end / 1e9) for span in (process, imports, weights)] == [
        ("process", 998, 1000.0),
        ("imports", 1000, 1001.0),
        ("weights_and_kv_cache", 1001, 1005.5),
    ]
    assert {span.parent_id for span in (process, imports, weights)} == {ids.span_id}
    assert parents == [f"00-{ids.trace_id}-{span.span_id}-01" for span in (imports, weights)]
    assert start.environment == {}  # requests have parents of their own
    assert [json.loads(document)["phase"] for document in start.published] == [
        "imports",
        "weights_and_kv_cache",
        "ready",
    ]


def test_a_failed_start_names_its_phase_and_reason() -> None:
    start = Start()
    with pytest.raises(OSError, match="no weights"), start.startup.phase("weights_and_kv_cache"):
        raise OSError("no weights")

    root, process, weights = start.traced.spans
    assert root.error == weights.error == "OSError: no weights"
    assert not process.error
    assert start.environment == {}


def test_without_traces_a_start_is_as_before() -> None:
    model = ModelSettings(name="tide")

    assert trace_startup(TraceSettings(), model, "r1", print) == (print, model)


def test_vllm_sends_to_the_same_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.environ", {})
    settings = TraceSettings(enabled=True, endpoint="http://c:1", protocol="http/protobuf", service_name="s")

    _, model = trace_startup(settings, ModelSettings(name="tide", engine_args={"seed": 7}), "r1", print)

    import os

    assert model.engine_args == {"seed": 7, "otlp_traces_endpoint": "http://c:1/v1/traces"}
    assert os.environ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] == "http/protobuf"
    assert os.environ["OTEL_SERVICE_NAME"] == "s"
    assert os.environ["OTEL_TRACES_SAMPLER"] == "parentbased_always_on"
