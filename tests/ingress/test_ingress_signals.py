from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from serve_app.api.engine_client import EngineRequest, Operation
from serve_app.api.errors import ApiError
from serve_app.api.outcome import OUTCOMES, Outcome
from serve_app.controller.contexts import ingress_readings, ongoing_of_ingress
from serve_app.ingress.ingress_signals import IngressCounters, ingress_report
from serve_app.wire.signals import INGRESS_FIELDS, IngressSignals

FULL = ApiError(429, "full", code="queue_full")


class StubHeld:
    body_bytes = 0

    def __init__(self) -> None:
        self.ages: list[float] = []

    def __len__(self) -> int:
        return len(self.ages)

    def oldest_s(self) -> float:
        return max(self.ages, default=0.0)


class StubMeter:
    def __init__(self) -> None:
        self.seen: list[tuple[object, ...]] = []

    def set_held(self, requests: int, oldest_s: float) -> None:
        self.seen.append(("held", requests, oldest_s))

    def count_arrival(self) -> None:
        self.seen.append(("arrival",))

    def count_rejection(self, reason: str) -> None:
        self.seen.append(("rejection", reason))

    def count_abandonment(self) -> None:
        self.seen.append(("abandonment",))

    def count_response(self, outcome: Outcome) -> None:
        self.seen.append(("response", outcome))

    def observe_cold_wait(self, seconds: float) -> None:
        self.seen.append(("cold wait", seconds))

    def observe_ttft(self, seconds: float, *, cold: bool) -> None:
        self.seen.append(("ttft", seconds, cold))


class Counted:
    """Counters with everything around them."""

    def __init__(self, deployment: str = "Engine-tide") -> None:
        self.now = 1000.0
        self.held = StubHeld()
        self.meter = StubMeter()
        self.counters = IngressCounters(deployment, self.held, self.meter, lambda: self.now)

    @property
    def signals(self) -> IngressSignals:
        return self.counters.signals()


@pytest.fixture
def counted() -> Counted:
    return Counted()


def request(operation: Operation = "chat_completions", body: bytes = b"12345") -> EngineRequest:
    return EngineRequest(operation, body, "r-1")


def test_where_nothing_has_happened_every_signal_is_zero(counted: Counted) -> None:
    assert counted.signals == IngressSignals()


@pytest.mark.parametrize("operation", ["chat_completions", "completions", "embeddings", "generate"])
def test_an_arrival_is_counted_once_with_the_bytes_of_its_body(
    counted: Counted, operation: Operation
) -> None:
    counted.counters.opened(request(operation, b"x" * 700))

    assert (counted.signals.arrivals_total, counted.signals.arrived_bytes_total) == (1, 700)
    assert counted.meter.seen == [("arrival",)]


@pytest.mark.parametrize("operation", ["tokenize", "detokenize"])
def test_tokenizing_is_no_work_for_a_gpu(counted: Counted, operation: Operation) -> None:
    tokenize = request(operation)

    counted.counters.opened(tokenize)
    counted.counters.admitted(tokenize)
    counted.counters.first_byte(tokenize, 0.1, 0.0)
    counted.counters.rejected(tokenize, FULL)
    counted.counters.abandoned(tokenize)
    counted.counters.opened(tokenize)
    counted.counters.closed(tokenize, 0.0, "error")

    assert counted.signals == IngressSignals()
    assert counted.meter.seen == []


def test_each_end_is_counted_as_what_it_is(counted: Counted) -> None:
    counted.counters.admitted(request())
    counted.counters.rejected(request(), FULL)
    counted.counters.rejected(request(), ApiError(503, "gone"))
    counted.counters.abandoned(request())

    signals = counted.signals
    assert (signals.admitted_total, signals.rejected_total, signals.abandoned_total) == (1, 2, 1)
    assert counted.meter.seen == [
        ("rejection", "queue_full"),
        ("rejection", "unknown"),
        ("abandonment",),
    ]


def test_how_a_request_ended_is_counted_when_it_has(counted: Counted) -> None:
    for outcome in OUTCOMES:
        counted.counters.closed(request(), 0.0, outcome)

    assert counted.meter.seen == [("response", outcome) for outcome in OUTCOMES]


def test_held_requests_are_seen_as_they_are_now(counted: Counted) -> None:
    counted.held.ages = [12.5, 3.0]
    counted.held.body_bytes = 90

    signals = counted.signals
    assert (signals.held_requests, signals.held_bytes, signals.oldest_held_s) == (2, 90, 12.5)

    counted.counters.publish_held()
    assert counted.meter.seen == [("held", 2, 12.5)]


@pytest.mark.parametrize("held_s", [0.0, 0.02, 0.5])
def test_a_moment_without_a_replica_is_no_cold_start(counted: Counted, held_s: float) -> None:
    counted.counters.first_byte(request(), 0.2, held_s)
    counted.counters.closed(request(), held_s, "ok")

    signals = counted.signals
    assert (signals.ttft_count, signals.cold_ttft_count) == (1, 0)
    assert signals.ttft_p95_s == pytest.approx(0.2, rel=0.05)
    assert counted.meter.seen == [("ttft", 0.2, False), ("response", "ok")]


def test_requests_that_waited_for_a_cold_start_do_not_spoil_the_ttft_of_the_others(
    counted: Counted,
) -> None:
    for _ in range(9):
        counted.counters.first_byte(request(), 0.1, 0.0)
    counted.counters.first_byte(request(), 42.0, 41.5)
    counted.counters.closed(request(), 41.5, "ok")

    signals = counted.signals
    assert (signals.ttft_count, signals.cold_ttft_count) == (9, 1)
    assert signals.ttft_p99_s == pytest.approx(0.1, rel=0.05)
    assert signals.cold_ttft_p50_s == pytest.approx(42.0, rel=0.05)
    assert counted.meter.seen[-3:] == [("ttft", 42.0, True), ("response", "ok"), ("cold wait", 41.5)]


def test_ttft_is_that_of_the_last_half_minute(counted: Counted) -> None:
    counted.counters.first_byte(request(), 0.1, 0.0)
    counted.now += 31.0

    assert counted.signals.ttft_count == 0
    assert counted.signals.ttft_p50_s == 0.0


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


def test_open_requests_are_those_of_all_models_and_operations() -> None:
    tide, other = Counted("Engine-tide"), Counted("Engine-other")
    tide.counters.opened(request())
    tide.counters.opened(request("tokenize"))
    other.counters.opened(request())

    assert ingress_report([tide.counters, other.counters])["ongoing_requests"] == 3.0
    tide.counters.closed(request(), 0.0, "ok")
    assert ingress_report([tide.counters, other.counters])["ongoing_requests"] == 2.0


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

    (reading,) = ingress_readings(raw, "Engine-tide", 51.0).values()
    assert (reading.signals, reading.age_s) == (counted.signals, 1.0)
    assert ongoing_of_ingress(raw, 51.0) == {"i1": (1.0, 1.0)}
