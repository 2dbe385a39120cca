"""The spans of scaling decisions, at a real receiver."""

import time
from typing import Any

from serve_app.controller.decision_records import Journal
from serve_app.controller.decision_spans import MOST_LINKS, DecisionSpans
from serve_app.policy.decide import Clamp, Decision, Term
from serve_app.settings.telemetry import TraceSettings
from serve_app.wire.ingress_reports import IngressReport
from tests.otlp_receiver import grpc_receiver

WAITING = tuple(f"00-{n:032x}-{n:016x}-01" for n in range(1, 20))
DECISION = Decision(
    target=3,
    wanted=4,
    binding="mode",
    reason="queue: 24 requests wait.",
    counterfactual="",
    terms=(Term("queue", 4, "24 requests"), Term("demand", 1, "few")),
    clamps=(Clamp("bounds", "at most 3"),),
)


def record(old: int, at: float) -> dict[str, Any]:
    found = Journal().note("Engine-tide", "tide", "act", old, 0, DECISION, at)
    assert found is not None
    return found


def test_each_changed_target_is_one_span_with_its_reasons_and_links() -> None:
    now = time.time()
    reports = {"i1": IngressReport(now, {}, WAITING)}
    with grpc_receiver() as received:
        spans = DecisionSpans()
        settings = TraceSettings(enabled=True, endpoint=received.url)
        records = [record(0, now - 60), record(0, now + 1), record(3, now + 2), record(1, now + 3)]
        for seconds in (1.5, 2.0, 3.0, 4.0, 5.0):
            spans.send(settings, records, reports, now + seconds)
        found = received.wait(lambda spans: len(spans) == 2)

    first, second = sorted(found, key=lambda span: span.start)
    assert [round(span.start - now, 3) for span in (first, second)] == [1.0, 3.0]
    assert first.attributes == {
        "gen_ai.request.model": "tide",
        "tideserve.decision.kind": "change",
        "tideserve.decision.mode": "act",
        "tideserve.decision.old_target": 0,
        "tideserve.decision.new_target": 3,
        "tideserve.decision.wanted": 4,
        "tideserve.decision.ready": 0,
        "tideserve.decision.binding": "mode",
        "tideserve.decision.reason": "queue: 24 requests wait.",
        "tideserve.decision.term.queue": 4,
        "tideserve.decision.term.demand": 1,
        "tideserve.decision.clamps": ["bounds: at most 3"],
    }
    assert first.links == [tuple(each.split("-")[1:3]) for each in WAITING[:MOST_LINKS]]
    assert first.trace_id != second.trace_id


def test_without_traces_no_decision_is_sent() -> None:
    now = time.time()
    DecisionSpans().send(None, [record(0, now + 1)], {}, now + 5)
