from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from serve_app.api.engine_client import OUTCOMES, EngineRequest, Operation, RequestState
from serve_app.api.errors import ApiError
from serve_app.controller.contexts import Sightings, ingress_readings, ongoing_of_ingress
from serve_app.ingress.ingress_deployment import ingress_report
from serve_app.ingress.request_counters import IngressCounters
from serve_app.telemetry import replica_metrics as made
from serve_app.telemetry.replica_metrics import IngressMetrics
from serve_app.wire.signals import INGRESS_FIELDS, IngressSignals
from tests.telemetry.stub_metric import SERIES, StubMetric

FULL = ApiError(429, "full", code="queue_full")


class StubHeld:
    body_bytes = 0

    def __init__(self) -> None:
        self.ages: list[float] = []

    def __len__(self) -> int:
        return len(self.ages)

    def oldest_s(self) -> float:
        return max(self.ages, default=0.0)

    def newest_s(self) -> float:
        return min(self.ages, default=0.0)


class Counted:
    """Counters with everything around them."""

    def __init__(self, deployment: str = "Engine-tide") -> None:
        self.held = StubHeld()
        SERIES.clear()
        metrics = IngressMetrics("tide", "replica-1")
        self._series = dict(SERIES)
        self.counters = IngressCounters(deployment, self.held, metrics)

    @property
    def seen(self) -> dict[str, list[tuple[float, dict[str, str]]]]:
        """What each series has been given, of those that have been given anything."""
        return {name: series.values for name, series in self._series.items() if series.values}

    @property
    def signals(self) -> IngressSignals:
        return self.counters.signals()


@pytest.fixture(autouse=True)
def _stub_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("Histogram", "Counter", "Gauge"):
        monkeypatch.setattr(made, kind, StubMetric)


@pytest.fixture
def counted() -> Counted:
    return Counted()


def request(operation: Operation = "chat_completions", body: bytes = b"12345", **known: Any) -> EngineRequest:
    return EngineRequest(operation, body, "r-1", state=RequestState(**known))


@pytest.mark.parametrize("operation", ["chat_completions", "completions", "embeddings", "generate"])
def test_arrival_counts_once_with_its_body_bytes(counted: Counted, operation: Operation) -> None:
    counted.counters.opened(request(operation, b"x" * 700))

    assert (counted.signals.arrivals_total, counted.signals.arrived_bytes_total) == (1, 700)
    assert counted.seen == {"llm_arrivals_total": [(1, {})]}


@pytest.mark.parametrize("operation", ["tokenize", "detokenize"])
def test_tokenizing_is_no_work_for_a_gpu(counted: Counted, operation: Operation) -> None:
    tokenize = request(operation)

    counted.counters.opened(tokenize)
    tokenize.state.ttft_s = 0.1
    counted.counters.first_byte(tokenize)
    counted.counters.rejected(tokenize, FULL)
    tokenize.state.outcome = "abandoned"
    counted.counters.closed(tokenize)

    assert counted.signals == IngressSignals()
    assert counted.seen == {}


def test_a_refusal_is_counted_by_its_reason(counted: Counted) -> None:
    counted.counters.rejected(request(), FULL)
    counted.counters.rejected(request(), ApiError(503, "gone"))

    assert counted.seen == {"llm_rejected_total": [(1, {"reason": "queue_full"}), (1, {"reason": "unknown"})]}


def test_how_a_request_ended_is_counted_when_it_has(counted: Counted) -> None:
    for outcome in OUTCOMES:
        counted.counters.closed(request(outcome=outcome, ttft_s=0.1))

    assert counted.seen == {"llm_responses_total": [(1, {"outcome": outcome}) for outcome in OUTCOMES]}


def test_client_that_left_unanswered_counts_as_abandoned(counted: Counted) -> None:
    counted.counters.closed(request(outcome="abandoned"))

    assert counted.seen == {
        "llm_responses_total": [(1, {"outcome": "abandoned"})],
        "llm_abandoned_total": [(1, {})],
    }


def test_held_requests_are_seen_as_they_are_now(counted: Counted) -> None:
    counted.held.ages = [12.5, 3.0]
    counted.held.body_bytes = 90

    signals = counted.signals
    assert (signals.held_requests, signals.held_bytes) == (2, 90)
    assert (signals.oldest_held_s, signals.newest_held_s) == (12.5, 3.0)

    counted.counters.publish_queue()
    assert counted.seen == {"llm_held_requests": [(2, {})], "llm_oldest_held_seconds": [(12.5, {})]}


@pytest.mark.parametrize("held_s", [0.0, 0.02, 0.5])
def test_a_moment_without_a_replica_is_no_cold_start(counted: Counted, held_s: float) -> None:
    served = request(ttft_s=0.2, queued_s=held_s, outcome="ok")
    counted.counters.first_byte(served)
    counted.counters.closed(served)

    assert counted.seen == {
        "llm_user_ttft_seconds": [(0.2, {"cold": "false"})],
        "llm_responses_total": [(1, {"outcome": "ok"})],
    }


def test_ttft_after_a_cold_start_has_its_own_label(counted: Counted) -> None:
    served = request(ttft_s=42.0, queued_s=41.5, outcome="ok")
    counted.counters.first_byte(served)
    counted.counters.closed(served)

    assert counted.seen == {
        "llm_user_ttft_seconds": [(42.0, {"cold": "true"})],
        "llm_responses_total": [(1, {"outcome": "ok"})],
        "llm_cold_wait_seconds": [(41.5, {})],
    }


def test_the_report_is_flat_with_every_field_of_every_model() -> None:
    tide, other = Counted("Engine-tide"), Counted("Engine-other")
    tide.counters.opened(request())

    report = ingress_report([tide.counters, other.counters])

    names = {
        f"{deployment}:{name}" for deployment in ("Engine-tide", "Engine-other") for name in INGRESS_FIELDS
    }
    assert set(report) == {"ongoing_requests", *names}
    assert report["Engine-tide:arrivals_total"] == 1.0
    assert report["Engine-other:arrivals_total"] == 0.0
    assert all(type(value) is float for value in report.values())


def test_requests_that_are_held_are_not_carried(counted: Counted) -> None:
    """They wait for an engine replica; another ingress replica would take its room."""
    for _ in range(3):
        counted.counters.opened(request())
    counted.held.ages = [4.0, 2.0]

    report = ingress_report([counted.counters])

    assert report["ongoing_requests"] == 1.0
    assert report["Engine-tide:held_requests"] == 2.0


@dataclass(frozen=True)
class ReplicaID:
    unique_id: str


def test_what_is_reported_is_what_the_policy_reads(counted: Counted) -> None:
    counted.counters.opened(request(body=b"123"))
    raw = {
        key: {ReplicaID("i1"): [SimpleNamespace(timestamp=50.0, value=value)]}
        for key, value in ingress_report([counted.counters]).items()
    }

    (reading,) = ingress_readings(raw, "Engine-tide", 51.0, Sightings()).values()
    assert (reading.signals, reading.age_s) == (counted.signals, 1.0)
    assert ongoing_of_ingress(raw, 51.0, Sightings()) == {"i1": (1.0, 1.0)}
