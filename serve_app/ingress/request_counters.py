"""The counts of requests of one ingress replica, for metrics and for the autoscaling policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from serve_app.api.engine_client import GPU_OPERATIONS, EngineRequest, Traffic
from serve_app.api.errors import ApiError
from serve_app.wire.signals import IngressSignals

if TYPE_CHECKING:  # a replay imports this module, and needs no Ray
    from serve_app.ingress.waiting import RequestQueue
    from serve_app.telemetry.replica_metrics import IngressMetrics

COLD_AFTER_S = 0.5
"""A shorter wait in the queue is not a cold start: the request waited for news of a replica."""


class IngressCounters(Traffic):
    """Counts the requests of one model, without tokenizing, which is no work for a GPU.

    Requests of the lane `background` have two series of their own. They may wait for hours, and no alert and
    no term of the policy should count their waits.

    Call it only in the event loop of the ingress.

    Args:
        deployment: The model's engine deployment.
        queue: The model's queue, with requests of any operation.
    """

    def __init__(self, deployment: str, queue: RequestQueue, metrics: IngressMetrics) -> None:
        self.deployment = deployment
        self.open_requests = 0
        """Requests of any operation."""
        self.queue = queue
        self._metrics = metrics
        self._arrivals = self._arrived_bytes = 0

    def opened(self, request: EngineRequest) -> None:
        self.open_requests += 1
        if _counts(request):
            self._arrivals += 1
            self._arrived_bytes += request.counted_bytes
            self._metrics.arrivals.inc(1)

    def first_byte(self, request: EngineRequest) -> None:
        if _counts(request):
            cold = "true" if request.queued_s > COLD_AFTER_S else "false"
            self._metrics.ttft.observe(request.ttft_s, tags={"cold": cold})

    def rejected(self, request: EngineRequest, error: ApiError) -> None:
        if request.operation in GPU_OPERATIONS:
            request.refused = True
        if _counts(request):
            self._metrics.rejections.inc(1, tags={"reason": error.code or "unknown"})

    def closed(self, request: EngineRequest) -> None:
        self.open_requests -= 1
        if _counts(request) and _was_invalid(request):
            self._arrivals -= 1
            self._arrived_bytes -= request.counted_bytes
        if request.is_background:
            if request.operation in GPU_OPERATIONS:
                self._metrics.background_responses.inc(1, tags={"outcome": request.outcome})
            return
        if request.operation in GPU_OPERATIONS:
            self._metrics.responses.inc(1, tags={"outcome": request.outcome})
            if request.outcome == "abandoned" and request.ttft_s is None and not request.refused:
                self._metrics.abandonments.inc(1)
        if request.queued_s > COLD_AFTER_S:
            self._metrics.cold_wait.observe(request.queued_s)
        if request.lost_s:
            self._metrics.lost_wait.observe(request.lost_s)

    def publish_queue(self) -> None:
        """Publish the number of queued requests, and the wait of the oldest.

        Call it every second: Ray forgets a gauge that is not set for two.
        """
        self._metrics.held.set(self.queue.foreground)
        self._metrics.background_held.set(self.queue.background)
        self._metrics.oldest_held.set(max(self.queue.waits_s(), default=0.0))

    def signals(self) -> IngressSignals:
        waits_s = self.queue.waits_s()
        return IngressSignals(
            arrivals_total=self._arrivals,
            arrived_bytes_total=self._arrived_bytes,
            held_requests=self.queue.foreground,
            held_bytes=self.queue.body_bytes(),
            oldest_held_s=max(waits_s, default=0.0),
            newest_held_s=min(waits_s, default=0.0),
            background_held_requests=self.queue.background,
            background_held_bytes=self.queue.body_bytes(background=True),
        )


def _was_invalid(request: EngineRequest) -> bool:
    """Whether a request was refused for what it asks, which is no work for an engine and so no demand.

    With a deadline, the same outcome may mean that the deadline came, which is demand.
    """
    return request.outcome == "client_error" and request.timeout_s is None


def _counts(request: EngineRequest) -> bool:
    """Whether a request is work for a GPU in a lane other than `background`."""
    return request.operation in GPU_OPERATIONS and not request.is_background
