"""The spans of scaling decisions, at a real receiver."""

import time
from typing import Any

from serve_app.controller.decision_records import Journal, Kind
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


def records(*changes: tuple[int, float]) -> list[dict[str, Any]]:
    """The records of decisions, from the old target and the time of each."""
    journal = Journal()
    for old, at in changes:
        kind: Kind = "heartbeat" if old == DECISION.target else "change"
        journal.add(kind, "Engine-tide", "tide", "act", old, 0, DECISION, at)
    return journal.records()


def test_each_changed_target_is_one_span_with_its_reasons_and_links() -> None:
    now = time.time()
    reports = {"i1": IngressReport(now, {}, WAITING)}
    with grpc_receiver() as received:
        spans = DecisionSpans()
        settings = TraceSettings(enabled=True, endpoint=received.url)
        found = records((0, now - 60), (0, now + 1), (3, now + 2), (1, now + 3), (0, now - 3600))
        for seconds in (1.5, 2.0, 3.0, 4.0, 5.0):
            spans.send(settings, found[:4], reports, now + seconds)
        for seconds in (-3598.0, 5.0):  # the clock is set back for a moment
            spans.send(settings, found, reports, now + seconds)
        sent = received.wait(lambda spans: len(spans) == 3)

    back, first, second = sorted(sent, key=lambda span: span.start)
    assert [round(span.start - now, 3) for span in (back, first, second)] == [-3600.0, 1.0, 3.0]
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
    DecisionSpans().send(None, records((0, now + 1)), {}, now + 5)
