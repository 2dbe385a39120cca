"""The spans of scaling decisions, linked to the requests that waited for them."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from serve_app.settings.telemetry import TraceSettings
from serve_app.telemetry.collector import Collector
from serve_app.telemetry.traces import SpanSender, dropped_spans
from serve_app.wire import spans as names
from serve_app.wire.ingress_reports import IngressReport
from serve_app.wire.spans import Link, Span, Value, new_span_id

MOST_LINKS = 8
_LATER_S = 1.0
"""A decision is sent so much later: ingress replicas report twice a second which requests wait."""
_ROLE = "controller"


class DecisionSpans:
    """Makes a span of each changed target. Call it only in the policy's thread."""

    def __init__(self) -> None:
        self._seq, self._began = 0, time.time()
        """The newest decision with a span. An earlier policy has sent what came before."""
        self._settings: TraceSettings | None = None
        self._sender: SpanSender | None = None

    def send(
        self,
        settings: TraceSettings | None,
        records: Sequence[Mapping[str, Any]],
        reports: Mapping[str, IngressReport],
        now: float,
    ) -> None:
        """Send the spans of new changes among the `records`, with links to requests in the `reports`."""
        if settings is None:
            return
        new = [record for record in records if record["seq"] > self._seq and record["at"] <= now - _LATER_S]
        if not new:
            return
        changes = [each for each in new if each["kind"] == "change" and each["at"] > self._began]
        self._seq, self._began = new[-1]["seq"], 0.0  # the clock may be set back
        if settings != self._settings:
            self._open(settings)
        if self._sender is None:
            return
        waiting = [each for report in reports.values() for each in report.waiting]
        links = [Link.parse(each) for each in waiting[:MOST_LINKS]]
        spans = [decision_span(record, links) for record in changes]
        if spans:
            self._sender.put(len(spans), lambda: spans)

    def _open(self, settings: TraceSettings) -> None:
        self._settings = settings
        if self._sender is not None:
            self._sender.close(0.0)
            self._sender = None
        collector = Collector.of(settings, os.environ)
        if collector is not None:
            self._sender = SpanSender(collector, _ROLE, _ROLE, dropped_spans(_ROLE))


def decision_span(record: Mapping[str, Any], links: Iterable[Link] = ()) -> Span:
    """Return the span of a decision record: the terms, the clamps and the target are its attributes."""
    at = int(record["at"] * 1e9)
    attributes: dict[str, Value] = {names.REQUEST_MODEL: record["model"]}
    for name in ("kind", "mode", "old_target", "new_target", "wanted", "ready", "binding", "reason"):
        attributes[f"{names.DECISION_PREFIX}.{name}"] = record[name]
    for term in record["terms"]:
        attributes[f"{names.DECISION_PREFIX}.term.{term['name']}"] = term["replicas"]
    clamps = [f"{clamp['name']}: {clamp['effect']}" for clamp in record["clamps"]]
    attributes[f"{names.DECISION_PREFIX}.clamps"] = clamps
    return Span(
        names.DECISION, secrets.token_hex(16), new_span_id(), "", at, at, attributes, links=tuple(links)
    )
