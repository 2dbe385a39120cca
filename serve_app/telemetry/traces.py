"""Send spans to an OpenTelemetry collector, from a thread of its own.

vLLM sets the process's global tracer provider. So Tideserve makes finished spans itself and gives them to an
exporter of the OpenTelemetry SDK, without a provider.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ray.util.metrics import Counter

from serve_app import __version__
from serve_app.api.request_head import RequestTraces
from serve_app.patches.ray import show_zero
from serve_app.settings.telemetry import TraceSettings
from serve_app.telemetry.collector import Collector
from serve_app.wire.spans import SCHEMA_URL, Span

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

logger = logging.getLogger("ray.serve")

MOST_WAITING = 8192
"""Spans that wait for the collector. A span has about 1 KB."""
_MOST_AT_ONCE = 512
_INTERVAL_S = 1.0
_LOGGED_S = 60.0
"""The shortest time between two log lines about dropped spans."""


class SpanSender:
    """Sends spans from a thread. A collector that is slow or down costs requests nothing: spans are dropped.

    Args:
        collector: Where spans go.
        role: `ingress`, `engine`, `runner` or `controller`.
        instance: The id of the replica.
        count_dropped: Called in the thread, or by `put`, with the number of spans that were dropped.
    """

    def __init__(
        self,
        collector: Collector,
        role: str,
        instance: str,
        count_dropped: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._collector = collector
        self._about = {"service.instance.id": instance, "tideserve.role": role}
        self._count_dropped = count_dropped
        self._waiting: deque[tuple[int, Callable[[], Sequence[Span]]]] = deque()
        self._spans = 0
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = False
        self._failing = False
        self._logs_again_at = 0.0
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def put(self, count: int, spans: Callable[[], Sequence[Span]]) -> None:
        """Send the `count` spans that `spans` returns. It is called in the thread."""
        with self._lock:
            fits = self._spans + count <= MOST_WAITING
            if fits:
                self._spans += count
                self._waiting.append((count, spans))
        if not fits:
            self._drop(count, f"{MOST_WAITING} spans wait already")
        elif self._spans >= _MOST_AT_ONCE:
            self._wake.set()

    def close(self, timeout_s: float) -> None:
        """Send what waits, for at most `timeout_s` seconds."""
        self._stopped = True
        self._wake.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        said = _Said.installed()
        exporter = otlp_exporter(self._collector)
        convert = SdkSpans(self._collector, self._about)
        while not self._stopped or self._waiting:
            self._wake.wait(0.0 if self._stopped else _INTERVAL_S)
            self._wake.clear()
            while batch := self._take():
                said.last, count = "", sum(count for count, _ in batch)
                try:
                    converted = [convert(span) for _, spans in batch for span in spans()]
                    sent = exporter.export(converted).name == "SUCCESS"
                except Exception as error:  # the thread must go on, whatever one span has
                    sent, said.last = False, f"{type(error).__name__}: {error}"
                if sent:
                    self._failing = False
                else:
                    self._drop(count, said.last or "it does not answer")
        exporter.shutdown()

    def _take(self) -> list[tuple[int, Callable[[], Sequence[Span]]]]:
        with self._lock:
            batch, total = [], 0
            while self._waiting and total < _MOST_AT_ONCE:
                batch.append(self._waiting.popleft())
                total += batch[-1][0]
            self._spans -= total
            return batch

    def _drop(self, count: int, why: str) -> None:
        self._count_dropped(count)
        failing, self._failing = self._failing, True
        now = time.monotonic()
        if not failing and now >= self._logs_again_at:  # a slow collector fails every now and then
            self._logs_again_at = now + _LOGGED_S
            logger.warning(
                "traces: %d spans dropped: the collector at %s: %s. llm_trace_spans_dropped_total counts "
                "further ones. Requests are not affected.",
                count,
                self._collector.endpoint,
                " ".join(why.split())[:300],
            )


class _Said(logging.Handler):
    """Keeps the last message of the SDK's exporters, which would log each failed export."""

    last = ""

    @classmethod
    def installed(cls) -> _Said:
        handler = cls(logging.WARNING)
        exporters = logging.getLogger("opentelemetry.exporter")
        exporters.handlers = [handler]
        exporters.propagate = False
        return handler

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()


def otlp_exporter(collector: Collector) -> SpanExporter:
    """Return the SDK's exporter. Certificates, timeout and compression come from `OTEL_*` variables."""
    headers = dict(collector.headers)
    if collector.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter as Grpc,
        )

        return Grpc(endpoint=collector.endpoint, headers=headers)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
        OTLPSpanExporter as Http,
    )

    return Http(endpoint=collector.endpoint, headers=headers)


class SdkSpans:
    """Converts spans for an exporter of the SDK. The import of the SDK takes 0.2 s of CPU and 30 MB."""

    def __init__(self, collector: Collector, about: Mapping[str, str]) -> None:
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415

        named = {"service.name": collector.service_name, "service.version": __version__}
        self._resource: Resource = Resource.create({**collector.resource, **named, **about})
        self._scope = InstrumentationScope("tideserve", __version__, SCHEMA_URL)

    def __call__(self, span: Span) -> ReadableSpan:
        from opentelemetry import trace as api  # noqa: PLC0415
        from opentelemetry.sdk.trace import Event, ReadableSpan  # noqa: PLC0415

        def context(trace_id: str, span_id: str, state: str = "", *, remote: bool = False) -> Any:
            sampled, entries = api.TraceFlags(api.TraceFlags.SAMPLED), api.TraceState.from_header([state])
            return api.SpanContext(int(trace_id, 16), int(span_id, 16), remote, sampled, entries)

        error = span.error.encode("utf-8", "replace").decode()  # half a surrogate pair could not be sent
        status = api.Status(api.StatusCode.ERROR, error) if error else api.Status()
        parent = context(span.trace_id, span.parent_id, remote=span.remote_parent) if span.parent_id else None
        return ReadableSpan(
            span.name,
            context(span.trace_id, span.span_id, span.tracestate),
            parent,
            self._resource,
            span.attributes,
            [Event(event.name, event.attributes, event.at) for event in span.events],
            [api.Link(context(link.trace_id, link.span_id, remote=True)) for link in span.links],
            api.SpanKind[span.kind],
            status=status,
            start_time=span.start,
            end_time=span.end,
            instrumentation_scope=self._scope,
        )


def dropped_spans(replica: str) -> Callable[[int], None]:
    """Return a function that counts dropped spans in the metrics. Call it inside the replica."""
    counter = Counter("llm_trace_spans_dropped_total", "Spans that no collector took.", tag_keys=("replica",))
    counter.set_default_tags({"replica": replica})
    show_zero(counter)

    def count(spans: int) -> None:
        counter.inc(spans)

    return count


def request_traces(settings: TraceSettings, environment: Mapping[str, str], replica: str) -> RequestTraces:
    """Return the traces of an ingress replica's requests, which a collector gets if the settings say so."""
    collector = Collector.of(settings, environment)
    if collector is None:
        return RequestTraces()
    sender = SpanSender(collector, "ingress", replica, dropped_spans(replica))
    return RequestTraces(
        collector.sampling_ratio,
        settings.record_prompts,
        lambda trace: sender.put(1 + len(trace.stages), trace.spans),
    )
