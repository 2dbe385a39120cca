"""Make the series of one replica, each labelled with the model and the replica.

The boundaries of histograms are in seconds. They resolve 10 ms to 10 s, densely around the targets operators
alert on: 100, 200 and 500 ms for TTFT, 15, 25 and 40 ms for inter-token latency, so that a P95 near a target
is read off a narrow bucket.
"""

from ray.util.metrics import Counter, Gauge, Histogram

from serve_app.telemetry.tallied_histogram import TalliedHistogram

LABELS = ("model", "replica")
TTFT_S = (
    0.01, 0.02, 0.03, 0.05, 0.075, 0.09, 0.1, 0.11, 0.125, 0.15, 0.175, 0.19, 0.2, 0.21, 0.225, 0.25, 0.3,
    0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 30.0, 60.0, 120.0,
)  # fmt: skip
INTER_TOKEN_S = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.0125, 0.014, 0.015, 0.016, 0.0175, 0.02, 0.0225, 0.024, 0.025,
    0.026, 0.0275, 0.03, 0.035, 0.0375, 0.04, 0.0425, 0.045, 0.05, 0.06, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0,
    2.5, 5.0, 10.0,
)  # fmt: skip
E2E_S = (
    0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0,
)  # fmt: skip


class ReplicaSeries:
    """Registers series with Ray; use it inside the replica, never at import.

    `more` are labels beside the model and the replica, which each observation or increment gives.
    """

    def __init__(self, model: str, replica: str) -> None:
        self._tags = {"model": model, "replica": replica}

    def histogram(self, name: str, text: str, bounds: tuple[float, ...], *more: str) -> Histogram:
        """A histogram with upper `bounds`."""
        metric = Histogram(name, text, boundaries=list(bounds), tag_keys=LABELS + more)
        metric.set_default_tags(self._tags)
        return metric

    def tallied(self, name: str, text: str, bounds: tuple[float, ...]) -> TalliedHistogram:
        """A histogram with upper `bounds`, for more values than Ray's can take."""
        bucket = self.gauge(f"{name}_bucket", text, "le")
        return TalliedHistogram(
            bucket, self.gauge(f"{name}_sum", text), self.gauge(f"{name}_count", text), bounds
        )

    def counter(self, name: str, text: str, *more: str) -> Counter:
        """A counter."""
        metric = Counter(name, text, tag_keys=LABELS + more)
        metric.set_default_tags(self._tags)
        return metric

    def gauge(self, name: str, text: str, *more: str) -> Gauge:
        """A gauge."""
        metric = Gauge(name, text, tag_keys=LABELS + more)
        metric.set_default_tags(self._tags)
        return metric
