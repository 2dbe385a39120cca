"""Early reports of an ingress replica whose first request for a model at zero has just come."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from ray.serve._private.common import ReplicaID, ReplicaMetricReport, TimeStampedValue

logger = logging.getLogger("ray.serve")

_REPORTS = 10
"""One second of reports: the policy waits at most so long for the size of a burst."""


class ColdReports:
    """Sends the report of one ingress replica ten times a second, for a second after `start`.

    Ray sends the report twice a second, with values up to half a second old. Then the policy would see the
    first request for a model at zero after half a second on average, and the burst half a second later.

    Args:
        controller: Ray Serve's controller.
        replica: The id of this ingress replica.
        report: Returns the report that Ray sends (`record_autoscaling_stats`).
        interval_s: The policy decides as often for a model at zero replicas.
        clock: Unix time in seconds.
    """

    def __init__(
        self,
        controller: Any,
        replica: ReplicaID,
        report: Callable[[], Mapping[str, float]],
        interval_s: float = 0.1,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._controller = controller
        self._replica = replica
        self._report = report
        self._interval_s = interval_s
        self._clock = clock
        self._left = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Send the first report in the next turn of the event loop. Each call restarts the second."""
        self._left = _REPORTS
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._left:
            self._left -= 1
            try:
                now = self._clock()
                values = {name: [TimeStampedValue(now, value)] for name, value in self._report().items()}
                report = ReplicaMetricReport(self._replica, values, now)
                self._controller.record_autoscaling_metrics_from_replica.remote(report)
            except Exception:  # Ray still sends its own report
                logger.warning("the report of queued requests could not be sent early", exc_info=True)
                return
            await asyncio.sleep(self._interval_s)
