"""The reports that follow the first request of a model at zero. Serve's controller is a stub."""

import asyncio
import logging

import pytest
from ray.serve._private.common import ReplicaMetricReport, TimeStampedValue

from serve_app.ingress import ingress_deployment
from serve_app.ingress.ingress_deployment import ColdReports
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
    monkeypatch.setattr(ingress_deployment, "_INTERVAL_S", 0.0)
    monkeypatch.setattr(ingress_deployment, "time", replica)
    return replica


async def test_a_report_is_what_ray_would_send_as_of_now(replica: Replica) -> None:
    replica.reports.start()
    assert replica.controller.reports == []

    await replica.turns(1)

    now = 1_700_000_000.0
    values = {"Engine-tide:held_requests": [TimeStampedValue(now, 1.0)]}
    assert replica.controller.reports == [ReplicaMetricReport(REPLICA, values, now)]


async def test_ten_reports_each_have_the_present_queue(replica: Replica) -> None:
    replica.reports.start()

    assert await replica.turns(20) == list(range(1, 11))


async def test_second_cold_model_restarts_the_second_in_one_task(replica: Replica) -> None:
    replica.reports.start()
    await replica.turns(7)
    replica.reports.start()

    assert await replica.turns(1) == list(range(1, 9))
    assert await replica.turns(20) == list(range(1, 18))


async def test_a_failed_report_ends_the_series(replica: Replica, caplog: pytest.LogCaptureFixture) -> None:
    replica.controller.fails = RuntimeError("Ray is gone")
    with caplog.at_level(logging.WARNING, "ray.serve"):
        replica.reports.start()
        await replica.turns(20)
    assert caplog.messages == ["the report of queued requests could not be sent early"]

    replica.controller.fails = None
    replica.reports.start()

    assert len(await replica.turns(20)) == 10
