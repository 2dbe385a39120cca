"""Early reports of an ingress replica whose first request for a model at zero has just come."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ray.serve._private.common import ReplicaID, ReplicaMetricReport, TimeStampedValue

logger = logging.getLogger("ray.serve")

_REPORTS = 10
"""One second of reports: the policy waits at most so long for the size of a burst."""


@dataclass(slots=True, eq=False)
class ColdReports:
    """Sends the report of one ingress replica ten times a second, for a second after `start`.

    Ray sends the report twice a second, with values up to half a second old. Then the policy would see the
    first request for a model at zero after half a second on average, and the burst half a second later.
    """

    controller: Any
    """Ray Serve's controller."""
    replica: ReplicaID
    """The id of this ingress replica."""
    report: Callable[[], Mapping[str, float]]
    """Returns the report that Ray sends (`record_autoscaling_stats`)."""
    interval_s: float = 0.1
    """The policy decides as often for a model at zero replicas."""
    clock: Callable[[], float] = time.time
    """Unix time in seconds."""
    _left: int = field(default=0, init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)

    def start(self) -> None:
        """Send the first report in the next turn of the event loop. Each call restarts the second."""
        self._left = _REPORTS
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._left:
            self._left -= 1
            try:
                now = self.clock()
                values = {name: [TimeStampedValue(now, value)] for name, value in self.report().items()}
                report = ReplicaMetricReport(self.replica, values, now)
                self.controller.record_autoscaling_metrics_from_replica.remote(report)
            except Exception:  # Ray still sends its own report
                logger.warning("the report of queued requests could not be sent early", exc_info=True)
                return
            await asyncio.sleep(self.interval_s)
