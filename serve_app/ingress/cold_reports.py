"""Reports to the policy in the second after a model at zero is asked for.

Ray sends an ingress replica's report twice a second, with values that are up to half a second old. So the
policy would know of the first request after half a second on average, and of its burst after another half.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

import ray
from ray.serve._private.common import ReplicaID, ReplicaMetricReport, TimeStampedValue
from ray.serve._private.constants import SERVE_CONTROLLER_NAME, SERVE_NAMESPACE

logger = logging.getLogger("ray.serve")

_INTERVAL_S = 0.1
"""As often as the policy decides for a model at zero."""
_REPORTS = 10
"""For a second, the longest that the policy waits for the size of a burst."""


class ColdReports:
    """Sends the report of one ingress replica ten times a second, for a second after `start`.

    One that Ray sends in between may be older than those before it.

    Args:
        replica: The ingress replica's own id.
        report: What Ray would be told: `record_autoscaling_stats`.
    """

    def __init__(self, replica: ReplicaID, report: Callable[[], Mapping[str, float]]) -> None:
        self._replica = replica
        self._report = report
        self._controller = ray.get_actor(SERVE_CONTROLLER_NAME, SERVE_NAMESPACE)
        self._left = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Send the first report in the next turn of the event loop.

        While reports are sent for another model, which are of this one too, the second begins anew.
        """
        self._left = _REPORTS
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._left:
            self._left -= 1
            try:
                self._send(time.time())
            except Exception:  # Ray's own report comes all the same
                logger.warning("the report of held requests could not be sent at once", exc_info=True)
                return
            await asyncio.sleep(_INTERVAL_S)

    def _send(self, now: float) -> None:
        values = {name: [TimeStampedValue(now, value)] for name, value in self._report().items()}
        report = ReplicaMetricReport(self._replica, values, now)
        self._controller.record_autoscaling_metrics_from_replica.remote(report)
