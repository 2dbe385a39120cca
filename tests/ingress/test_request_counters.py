from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private.common import DeploymentID, ReplicaID

from serve_app.api.engine_client import GPU_OPERATIONS, OPERATIONS, OUTCOMES, EngineRequest, Operation
from serve_app.api.errors import ApiError
from serve_app.controller.contexts import Seen, ingress_readings, ongoing_of_ingress
from serve_app.ingress.ingress_deployment import ingress_report
from serve_app.ingress.request_counters import IngressCounters
from serve_app.settings.caller import ANYONE, Caller
from serve_app.telemetry import replica_metrics as made
from serve_app.telemetry.replica_metrics import IngressMetrics
from serve_app.wire.signals import INGRESS_FIELDS, IngressSignals
from tests.telemetry.stub_metric import SERIES, StubMetric


class FakeQueue:
    """A queue with requests of these ages."""

    def __init__(self) -> None:
        self.ages: list[float] = []
        self.bytes = 0
        self.background = 0
        """Queued requests of the lane background, of 7 bytes each."""

    def __len__(self) -> int:
        return self.foreground + self.background

    @property
    def foreground(self) -> int:
        return len(self.ages)

    def body_bytes(self, *, background: bool = False) -> int:
        return 7 * self.background if background else self.bytes

    def waits_s(self) -> list[float]:
        return self.ages


class Counted:
    """Counters, their queue and their series."""

    def __init__(self, deployment: str = "Engine-tide") -> None:
        self.queue = FakeQueue()
        SERIES.clear()
        metrics = IngressMetrics("tide", "replica-1")
        self._series = dict(SERIES)
        self.counters = IngressCounters(deployment, self.queue, metrics)  # type: ignore[arg-type]

    @property
    def seen(self) -> dict[str, list[tuple[float, dict[str, str]]]]:
        """The values of each series that has any."""
        return {name: series.values for name, series in self._series.items() if series.values}


@pytest.fixture(autouse=True)
def _fake_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("Histogram", "Counter", "Gauge"):
        monkeypatch.setattr(made, kind, StubMetric)


BACKGROUND = Caller("batch", "background")


def request(
    operation: Operation = "chat_completions", body: bytes = b"12345", caller: Caller = ANYONE, **known: Any
) -> EngineRequest:
    return EngineRequest(operation, body, "r-1", caller=caller, **known)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_only_work_for_a_gpu_is_counted(operation: Operation) -> None:
    counted = Counted()
    asked = request(operation, b"x" * 700)

    counted.counters.opened(asked)
    asked.ttft_s = 0.1
    counted.counters.first_byte(asked)
    counted.counters.rejected(asked, ApiError(429, "full", code="queue_full"))
    counted.counters.rejected(asked, ApiError(503, "gone"))
    asked.outcome = "abandoned"
    counted.counters.closed(asked)

    if operation not in GPU_OPERATIONS:
        assert (counted.counters.signals(), counted.seen) == (IngressSignals(), {})
        return
    assert asked.refused
    assert counted.counters.signals() == IngressSignals(arrivals_total=1, arrived_bytes_total=700)
    assert counted.seen == {
        "llm_arrivals_total": [(1, {})],
        "llm_user_ttft_seconds": [(0.1, {"cold": "false"})],
        "llm_rejected_total": [(1, {"reason": "queue_full"}), (1, {"reason": "unknown"})],
        "llm_responses_total": [(1, {"outcome": "abandoned"})],
    }


def test_body_without_a_prompt_counts_as_at_most_a_long_prompt() -> None:
    counted = Counted()
    asked = request(body=b" " * (8 << 20))

    counted.counters.opened(asked)
    assert counted.counters.signals().arrived_bytes_total == 32_768 * 8
    asked.outcome = "client_error"
    counted.counters.closed(asked)
    assert counted.counters.signals().arrived_bytes_total == 0


@pytest.mark.parametrize("operation", OPERATIONS)
def test_background_requests_have_only_their_own_series(operation: Operation) -> None:
    counted = Counted()
    asked = request(operation, caller=BACKGROUND, queued_s=7200.0)

    counted.counters.opened(asked)
    asked.ttft_s = 7201.0
    counted.counters.first_byte(asked)
    counted.counters.rejected(asked, ApiError(429, "full", code="queue_full"))
    asked.outcome = "rejected"
    counted.counters.closed(asked)

    assert counted.counters.signals() == IngressSignals()
    for_gpu = operation in GPU_OPERATIONS
    responses = {"llm_background_responses_total": [(1, {"outcome": "rejected"})]}
    assert counted.seen == (responses if for_gpu else {})


@pytest.mark.parametrize("timeout_s", [None, 5.0])
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_invalid_requests_are_no_demand(outcome: Any, timeout_s: float | None) -> None:
    counted = Counted()
    asked = replace(request(outcome=outcome), timeout_s=timeout_s)

    counted.counters.opened(asked)
    assert counted.counters.signals().arrivals_total == 1
    counted.counters.closed(asked)

    left = 0 if outcome == "client_error" and timeout_s is None else 1
    assert counted.counters.signals() == IngressSignals(arrivals_total=left, arrived_bytes_total=5 * left)
    assert counted.seen["llm_arrivals_total"] == [(1, {})]


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize(
    ("state", "abandoned"), [({"ttft_s": 0.1}, False), ({"refused": True}, False), ({}, True)]
)
def test_only_a_client_that_left_unanswered_counts_as_abandoned(
    outcome: Any, state: dict[str, Any], abandoned: bool
) -> None:
    counted = Counted()

    counted.counters.closed(request(outcome=outcome, **state))

    assert counted.seen["llm_responses_total"] == [(1, {"outcome": outcome})]
    assert ("llm_abandoned_total" in counted.seen) == (abandoned and outcome == "abandoned")


@pytest.mark.parametrize(("queued_s", "cold"), [(0.0, "false"), (0.5, "false"), (0.51, "true")])
def test_a_wait_over_half_a_second_is_a_cold_start(queued_s: float, cold: str) -> None:
    counted = Counted()
    served = request(ttft_s=42.0, queued_s=queued_s, outcome="ok")

    counted.counters.first_byte(served)
    counted.counters.closed(served)

    assert counted.seen["llm_user_ttft_seconds"] == [(42.0, {"cold": cold})]
    assert counted.seen.get("llm_cold_wait_seconds", []) == ([(0.51, {})] if cold == "true" else [])


def test_time_lost_with_a_replica_is_no_cold_start() -> None:
    counted = Counted()
    served = request(ttft_s=42.0, lost_s=35.0, outcome="ok")

    counted.counters.first_byte(served)
    counted.counters.closed(served)

    assert counted.seen["llm_user_ttft_seconds"] == [(42.0, {"cold": "false"})]
    assert counted.seen["llm_lost_wait_seconds"] == [(35.0, {})]
    assert "llm_cold_wait_seconds" not in counted.seen


def test_the_policy_reads_every_signal_of_the_report() -> None:
    """Queued requests are not open ones: another ingress replica would take a place of an engine."""
    tide, other = Counted("Engine-tide"), Counted("Engine-other")
    for _ in range(3):
        tide.counters.opened(request())
    for _ in range(5):
        tide.counters.opened(request(caller=BACKGROUND))
    tide.queue.ages, tide.queue.bytes = [12.5, 3.0], 90
    tide.queue.background = 4

    report = ingress_report([tide.counters, other.counters])

    signals = IngressSignals(3, 15, 2, 90, 12.5, 3.0, 4, 28)
    names = {f"Engine-{model}:{name}" for model in ("tide", "other") for name in INGRESS_FIELDS}
    assert set(report) == {"ongoing_requests", *names}
    assert all(type(value) is float for value in report.values())
    replica = ReplicaID("i1", DeploymentID("Ingress", "shop"))
    reports = {
        replica: {key: [SimpleNamespace(timestamp=50.0, value=value)] for key, value in report.items()}
    }
    for deployment, expected in (("Engine-tide", signals), ("Engine-other", IngressSignals())):
        (reading,) = ingress_readings(reports, deployment, 51.0, Seen()).values()
        assert (reading.signals, reading.age_s) == (expected, 1.0)
    assert ongoing_of_ingress(reports, 51.0, Seen()) == {"i1": (2.0, 1.0)}

    tide.counters.publish_queue()
    assert tide.seen["llm_held_requests"] == [(2, {})]
    assert tide.seen["llm_background_held_requests"] == [(4, {})]
    assert tide.seen["llm_oldest_held_seconds"] == [(12.5, {})]
