"""The trace of an engine replica's cold start: one span for each phase, with vLLM's own spans below."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

from serve_app.engine.startup import Publish
from serve_app.settings.telemetry import TraceSettings
from serve_app.settings.tree import ModelSettings
from serve_app.telemetry.collector import Collector
from serve_app.telemetry.traces import SpanSender, dropped_spans
from serve_app.wire import spans as names
from serve_app.wire.phases import FAILED
from serve_app.wire.spans import Span, cold_start_root, new_span_id

_TRACEPARENT = "traceparent"
_SEND_S = 5.0
_ENDPOINT = "otlp_traces_endpoint"


@dataclass(slots=True)
class StartupSpans:
    """Reads the phases that a replica publishes, and makes spans of them.

    vLLM takes the parent of its start-up spans from the environment, in this process and in the engine core.
    So during a phase the environment has the phase's `traceparent`.
    """

    model: str
    replica: str
    publish: Publish
    environment: MutableMapping[str, str] = field(default_factory=lambda: os.environ)
    spans: list[Span] = field(default_factory=list)
    """The spans, the root first, once the start has ended."""
    _begun: list[tuple[str, int, str]] = field(default_factory=list)
    """The phases so far: name, Unix time in nanoseconds, span id."""

    def __call__(self, document: str) -> None:
        """Publish a phase document, and note its phase."""
        self.publish(document)
        if self.spans:
            return  # the start has ended
        phase: dict[str, Any] = json.loads(document)
        name, since = phase["phase"], int(phase["since"] * 1e9)
        root = cold_start_root(self.replica)
        if not self._begun and (process_s := phase["durations_s"].get("process")):
            self._begun.append(("process", since - int(process_s * 1e9), new_span_id()))
        if name in ("ready", FAILED):
            self.environment.pop(_TRACEPARENT, None)
            self.spans = self._finish(since, phase)
            return
        self._begun.append((name, since, new_span_id()))
        self.environment[_TRACEPARENT] = f"00-{root.trace_id}-{self._begun[-1][2]}-01"

    def _finish(self, end: int, phase: Mapping[str, Any]) -> list[Span]:
        root = cold_start_root(self.replica)
        failure = str(phase.get("reason", ""))
        about = {names.REQUEST_MODEL: self.model, names.REPLICA: self.replica}
        about[names.WARM_NODE] = phase["warm_node"]
        begin = self._begun[0][1] if self._begun else end
        found = [
            Span(names.COLD_START, root.trace_id, root.span_id, "", begin, end, about, error=failure),
        ]
        ends = [*(since for _, since, _ in self._begun[1:]), end]
        for (name, since, span_id), until in zip(self._begun, ends, strict=False):
            error = failure if name == phase.get("during") else ""
            found.append(
                Span(name, root.trace_id, span_id, root.span_id, since, max(since, until), error=error)
            )
        return found


def trace_startup(
    settings: TraceSettings, model: ModelSettings, replica: str, publish: Publish
) -> tuple[Publish, ModelSettings]:
    """Return what publishes the phases of a start, and the model's settings with vLLM's traces turned on.

    Without traces, both arguments are returned as they are.
    """
    collector = Collector.of(settings, os.environ)
    if collector is None:
        return publish, model
    os.environ.update(collector.variables())
    noted = StartupSpans(model.name, replica, publish)

    def publish_and_send(document: str) -> None:
        ended = bool(noted.spans)  # later documents tell of a replica's trouble
        noted(document)
        if noted.spans and not ended:
            Thread(target=_send, args=(collector, replica, tuple(noted.spans)), daemon=True).start()

    engine_args = {_ENDPOINT: collector.endpoint, **model.engine_args}
    return publish_and_send, model.model_copy(update={"engine_args": engine_args})


def _send(collector: Collector, replica: str, spans: tuple[Span, ...]) -> None:
    sender = SpanSender(collector, "engine", replica, dropped_spans(replica))
    sender.put(len(spans), lambda: spans)
    sender.close(_SEND_S)
