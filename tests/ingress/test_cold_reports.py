"""The reports that follow the first request of a model at zero."""

import asyncio
import logging

import pytest
from ray.serve._private.common import ReplicaMetricReport, TimeStampedValue

from serve_app.ingress.ray_router import ColdReports
from tests.ingress.test_ingress_deployment import REPLICA, FakeController


class Reports:
    """An ingress replica that queues one request more at every report, and a clock that counts them."""

    def __init__(self) -> None:
        self.queued = 0
        self.controller = FakeController()
        self.cold = ColdReports(self.controller, REPLICA, self._report, 0.0, lambda: 1e9 + self.queued)

    def _report(self) -> dict[str, float]:
        self.queued += 1
        return {"Engine-tide:held_requests": float(self.queued)}

    async def turns(self, count: int) -> list[float]:
        """Return all reported values after so many turns of the event loop, one for each interval."""
        for _ in range(count):
            await asyncio.sleep(0)
        values: list[float] = self.controller.values("Engine-tide:held_requests")
        return values


async def test_ten_reports_each_have_the_present_queue() -> None:
    reports = Reports()
    reports.cold.start()
    assert reports.controller.reports == []

    assert await reports.turns(7) == list(range(1, 8))
    values = {"Engine-tide:held_requests": [TimeStampedValue(1e9, 1.0)]}
    assert reports.controller.reports[0] == ReplicaMetricReport(REPLICA, values, 1e9)

    reports.cold.start()  # a second cold model restarts the second
    assert await reports.turns(20) == list(range(1, 18))


async def test_a_failed_report_ends_the_series(caplog: pytest.LogCaptureFixture) -> None:
    reports = Reports()
    reports.controller.fails = RuntimeError("Ray is gone")
    with caplog.at_level(logging.WARNING, "ray.serve"):
        reports.cold.start()
        await reports.turns(20)
    assert caplog.messages == ["the report of queued requests could not be sent early"]

    reports.controller.fails = None
    reports.cold.start()

    assert len(await reports.turns(20)) == 10
