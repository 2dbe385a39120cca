"""What one ingress replica sees of its models' requests, counted for the autoscaling policy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from serve_app.api.engine_client import GPU_OPERATIONS, EngineRequest
from serve_app.api.errors import ApiError
from serve_app.api.outcome import Outcome
from serve_app.telemetry.latency_window import LatencyWindow
from serve_app.wire.signals import INGRESS_FIELDS, IngressSignals, ingress_key

ONGOING_REQUESTS = "ongoing_requests"
"""The key under which an ingress replica reports the requests it carries, of all models: those that are open
and not held. A held stream is a comment every few seconds; what it waits for is an engine replica."""

COLD_AFTER_S = 0.5
"""A request held for no longer than this was not held by a cold start, but by news on their way."""

WINDOW_S = 30.0


class Held(Protocol):
    """The requests an ingress replica holds for one model."""

    def __len__(self) -> int: ...

    @property
    def body_bytes(self) -> int:
        """Bytes of their bodies."""

    def oldest_s(self) -> float:
        """How long the first of them has been held; 0 if there is none."""


class Meter(Protocol):
    """Where the same goes to be seen: see `IngressMetrics`."""

    def set_held(self, requests: int, oldest_s: float) -> None:
        """Publish how many requests are held, and for how long the first of them has been."""

    def count_arrival(self) -> None:
        """Count a request."""

    def count_rejection(self, reason: str) -> None:
        """Count a request that was refused."""

    def count_abandonment(self) -> None:
        """Count a request whose client left before its answer began."""

    def count_response(self, outcome: Outcome) -> None:
        """Count a request that has ended."""

    def observe_cold_wait(self, seconds: float) -> None:
        """Note how long a request was held."""

    def observe_ttft(self, seconds: float, *, cold: bool) -> None:
        """Note the TTFT a client saw, and whether a cold start was part of it."""


class IngressCounters:
    """Counts the requests of one model; the HTTP API tells it of them (`Traffic`).

    Not for several threads: read it in the event loop of the ingress.

    Args:
        deployment: The model's engine deployment.
        held: Its held requests, of any operation.
        meter: Where to publish.
        clock: Seconds.
    """

    def __init__(
        self, deployment: str, held: Held, meter: Meter, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.deployment = deployment
        self.open_requests = 0
        """Of any operation."""
        self._held = held
        self._meter = meter
        self._clock = clock
        self._arrivals = self._arrived_bytes = 0
        self._admitted = self._rejected = self._abandoned = 0
        self._ttft = LatencyWindow(WINDOW_S)
        self._cold_ttft = LatencyWindow(WINDOW_S)

    def opened(self, request: EngineRequest) -> None:
        """See `Traffic`."""
        self.open_requests += 1
        if request.operation in GPU_OPERATIONS:
            self._arrivals += 1
            self._arrived_bytes += len(request.body)
            self._meter.count_arrival()

    def admitted(self, request: EngineRequest) -> None:
        """See `Traffic`."""
        if request.operation in GPU_OPERATIONS:
            self._admitted += 1

    def first_byte(self, request: EngineRequest, ttft_s: float, held_s: float) -> None:
        """See `Traffic`."""
        if request.operation in GPU_OPERATIONS:
            cold = held_s > COLD_AFTER_S
            (self._cold_ttft if cold else self._ttft).observe(ttft_s, self._clock())
            self._meter.observe_ttft(ttft_s, cold=cold)

    def rejected(self, request: EngineRequest, error: ApiError) -> None:
        """See `Traffic`."""
        if request.operation in GPU_OPERATIONS:
            self._rejected += 1
            self._meter.count_rejection(error.code or "unknown")

    def abandoned(self, request: EngineRequest) -> None:
        """See `Traffic`."""
        if request.operation in GPU_OPERATIONS:
            self._abandoned += 1
            self._meter.count_abandonment()

    def closed(self, request: EngineRequest, held_s: float, outcome: Outcome) -> None:
        """See `Traffic`."""
        self.open_requests -= 1
        if request.operation in GPU_OPERATIONS:
            self._meter.count_response(outcome)
        if held_s > COLD_AFTER_S:
            self._meter.observe_cold_wait(held_s)

    @property
    def held_requests(self) -> int:
        """Of those open, the ones that wait for a replica."""
        return len(self._held)

    def publish_held(self) -> None:
        """Publish how many requests are held. To be called once a second."""
        self._meter.set_held(len(self._held), self._held.oldest_s())

    def signals(self) -> IngressSignals:
        """Everything counted so far, and the latencies of the last 30 s."""
        now = self._clock()
        return IngressSignals(
            arrivals_total=self._arrivals,
            arrived_bytes_total=self._arrived_bytes,
            held_requests=len(self._held),
            held_bytes=self._held.body_bytes,
            oldest_held_s=self._held.oldest_s(),
            admitted_total=self._admitted,
            rejected_total=self._rejected,
            abandoned_total=self._abandoned,
            ttft_count=self._ttft.count(now),
            ttft_p50_s=self._ttft.percentile(50, now),
            ttft_p90_s=self._ttft.percentile(90, now),
            ttft_p95_s=self._ttft.percentile(95, now),
            ttft_p99_s=self._ttft.percentile(99, now),
            cold_ttft_count=self._cold_ttft.count(now),
            cold_ttft_p50_s=self._cold_ttft.percentile(50, now),
        )


def ingress_report(models: Iterable[IngressCounters]) -> dict[str, float]:
    """What an ingress replica tells Ray: flat numbers, every model's signals and the requests it carries."""
    flat = {ONGOING_REQUESTS: 0.0}
    for counters in models:
        signals = counters.signals()
        flat[ONGOING_REQUESTS] += max(0, counters.open_requests - counters.held_requests)
        for name in INGRESS_FIELDS:
            flat[ingress_key(counters.deployment, name)] = float(getattr(signals, name))
    return flat
