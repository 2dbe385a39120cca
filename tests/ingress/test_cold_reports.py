"""The reports that follow the first request of a model at zero. Serve's controller is a stub."""

import asyncio
import logging

import pytest
from ray.serve._private.common import ReplicaMetricReport, TimeStampedValue
from ray.serve._private.constants import CONTROL_LOOP_INTERVAL_S

from serve_app.ingress import cold_reports
from serve_app.ingress.cold_reports import ColdReports
from serve_app.policy import decide
from tests.ingress.stub_controller import REPLICA, StubController


class Replica:
    """An ingress replica that holds one request more at every report, on a clock that goes with them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held = 0
        self.controller = StubController(monkeypatch)
        self.reports = ColdReports(REPLICA, self._report)

    def time(self) -> float:
        return 1_700_000_000.0 + self.held

    def _report(self) -> dict[str, float]:
        self.held += 1
        return {"Engine-tide:held_requests": float(self.held)}

    async def turns(self, count: int) -> list[float]:
        """What was reported after so many turns of the event loop, one for each interval."""
        for _ in range(count):
            await asyncio.sleep(0)
        values: list[float] = self.controller.values("Engine-tide:held_requests")
        return values


@pytest.fixture
def replica(monkeypatch: pytest.MonkeyPatch) -> Replica:
    replica = Replica(monkeypatch)
    monkeypatch.setattr(cold_reports, "_INTERVAL_S", 0.0)
    monkeypatch.setattr(cold_reports, "time", replica)
    return replica


def test_reports_come_as_often_as_the_policy_decides_for_as_long_as_it_waits_for_a_burst() -> None:
    assert cold_reports._INTERVAL_S == CONTROL_LOOP_INTERVAL_S
    assert cold_reports._INTERVAL_S * cold_reports._REPORTS == decide.COLD_BURST_S


async def test_a_report_is_what_ray_would_send_as_of_now(replica: Replica) -> None:
    replica.reports.start()
    assert replica.controller.reports == []

    await replica.turns(1)

    now = 1_700_000_000.0
    values = {"Engine-tide:held_requests": [TimeStampedValue(now, 1.0)]}
    assert replica.controller.reports == [ReplicaMetricReport(REPLICA, values, now)]


async def test_ten_reports_are_sent_each_with_the_requests_held_by_then(replica: Replica) -> None:
    replica.reports.start()

    assert await replica.turns(20) == list(range(1, 11))


async def test_another_model_at_zero_begins_the_second_anew_and_no_second_task(replica: Replica) -> None:
    replica.reports.start()
    await replica.turns(7)
    replica.reports.start()

    assert await replica.turns(1) == list(range(1, 9))
    assert await replica.turns(20) == list(range(1, 18))


async def test_the_next_cold_start_is_reported_as_the_first_was(replica: Replica) -> None:
    replica.reports.start()
    await replica.turns(20)
    replica.reports.start()

    assert await replica.turns(20) == list(range(1, 21))


async def test_a_report_that_cannot_be_sent_is_logged_and_ends_them_until_the_next_start(
    replica: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    replica.controller.fails = RuntimeError("Ray is gone")
    with caplog.at_level(logging.WARNING, "ray.serve"):
        replica.reports.start()
        await replica.turns(20)
    assert caplog.messages == ["the report of held requests could not be sent at once"]

    replica.controller.fails = None
    replica.reports.start()

    assert len(await replica.turns(20)) == 10
