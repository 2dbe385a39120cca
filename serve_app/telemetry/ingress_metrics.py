"""The metrics of one ingress replica about one model, labelled with the model and the replica."""

from __future__ import annotations

from serve_app.api.outcome import OUTCOMES, Outcome
from serve_app.telemetry.buckets import TTFT_S
from serve_app.telemetry.series import ReplicaSeries, show_zero

COLD_WAIT_S = (
    1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 240.0, 300.0, 450.0,
    600.0,
)  # fmt: skip
"""Histogram boundaries, in seconds: from a small model on a warm node to the default deadline."""


class IngressMetrics:
    """Registers the series of one model with Ray; build it inside the replica, never at import."""

    def __init__(self, model: str, replica: str) -> None:
        series = ReplicaSeries(model, replica)
        histogram, counter, gauge = series.histogram, series.counter, series.gauge

        self._held = gauge("llm_held_requests", "Requests held until a replica can take them.")
        self._oldest = gauge("llm_oldest_held_seconds", "How long the first of them has been held.")
        self._arrivals = counter("llm_arrivals_total", "Requests for generations and embeddings.")
        self._rejections = counter("llm_rejected_total", "Requests refused with 429 or 503.", "reason")
        self._abandonments = counter("llm_abandoned_total", "Requests left by their clients unanswered.")
        self._responses = counter(
            "llm_responses_total", "Requests that have ended, by how they ended.", "outcome"
        )
        self._cold_wait = histogram(
            "llm_cold_wait_seconds", "How long requests were held, those held over 0.5 s.", COLD_WAIT_S
        )
        self._ttft = histogram(
            "llm_user_ttft_seconds", "Time to first token, from the arrival at the ingress.", TTFT_S, "cold"
        )

        show_zero(self._arrivals)
        show_zero(self._abandonments)
        for outcome in OUTCOMES:
            show_zero(self._responses, outcome=outcome)

    def set_held(self, requests: int, oldest_s: float) -> None:
        """Publish how many requests are held, and for how many seconds the first of them has been."""
        self._held.set(requests)
        self._oldest.set(oldest_s)

    def count_arrival(self) -> None:
        """Count a request."""
        self._arrivals.inc(1)

    def count_rejection(self, reason: str) -> None:
        """Count a request that was refused, by its error code."""
        self._rejections.inc(1, tags={"reason": reason})

    def count_abandonment(self) -> None:
        """Count a request whose client left before its answer began."""
        self._abandonments.inc(1)

    def count_response(self, outcome: Outcome) -> None:
        """Count a request that has ended."""
        self._responses.inc(1, tags={"outcome": outcome})

    def observe_cold_wait(self, seconds: float) -> None:
        """Note how long a request was held."""
        self._cold_wait.observe(seconds)

    def observe_ttft(self, seconds: float, *, cold: bool) -> None:
        """Note the TTFT a client saw, and whether a cold start was part of it."""
        self._ttft.observe(seconds, tags={"cold": "true" if cold else "false"})
