"""The metrics of one ingress replica about one model, labelled with the model and the replica."""

from serve_app.api.engine_client import OUTCOMES
from serve_app.patches.ray import show_zero
from serve_app.telemetry.series import TTFT_S, ReplicaSeries

COLD_WAIT_S = (
    1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 240.0, 300.0, 450.0,
    600.0,
)  # fmt: skip
"""Histogram boundaries, in seconds: from a small model on a warm node to the default deadline."""


class IngressMetrics:
    """Registers the series of one model with Ray. Build it inside the replica, never at import."""

    def __init__(self, model: str, replica: str) -> None:
        series = ReplicaSeries(model, replica)
        histogram, counter, gauge = series.histogram, series.counter, series.gauge

        self.held = gauge("llm_held_requests", "Requests queued for a cold start.")
        self.oldest_held = gauge("llm_oldest_held_seconds", "How long ago the first of them came.")
        self.arrivals = counter("llm_arrivals_total", "Requests for generations and embeddings.")
        self.rejections = counter("llm_rejected_total", "Requests refused with 429 or 503.", "reason")
        self.abandonments = counter("llm_abandoned_total", "Requests left by their clients unanswered.")
        self.responses = counter(
            "llm_responses_total", "Requests that have ended, by how they ended.", "outcome"
        )
        self.cold_wait = histogram(
            "llm_cold_wait_seconds", "How long requests were queued, of those queued over 0.5 s.", COLD_WAIT_S
        )
        self.ttft = histogram(
            "llm_user_ttft_seconds", "Time to first token, from the arrival at the ingress.", TTFT_S, "cold"
        )

        show_zero(self.arrivals)
        show_zero(self.abandonments)
        for outcome in OUTCOMES:
            show_zero(self.responses, outcome=outcome)
