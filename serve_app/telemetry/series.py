"""Make the series of one replica, each labelled with the model and the replica.

The boundaries of histograms are in seconds. They are dense around the usual targets: 100, 200 and 500 ms for
TTFT, and 15, 25 and 40 ms for inter-token latency. So a P95 near a target falls into a narrow bucket.
"""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

from ray.util.metrics import Counter, Gauge, Histogram

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


class TalliedHistogram:
    """A histogram that counts in this process and gives Ray the totals once a second.

    With Ray's own histogram, the metrics agent of the node records each value again in Python: 10 µs per
    token. It would be fully busy at 100,000 tokens per second on its node.

    Args:
        bucket: The gauge for the number of values up to `le`, its additional label.
        total: The gauge for the sum of all values.
        count: The gauge for the number of values.
        bounds: Upper bounds of the buckets, ascending.
    """

    def __init__(self, bucket: Gauge, total: Gauge, count: Gauge, bounds: tuple[float, ...]) -> None:
        self._bucket, self._total, self._count = bucket, total, count
        self._bounds = bounds
        self._labels = [{"le": le} for le in (*map(str, bounds), "+Inf")]
        self._counts = [0] * len(self._labels)
        self._sum = 0.0

    def observe(self, values: Iterable[float]) -> None:
        """Count `values`."""
        for value in values:
            self._counts[bisect_left(self._bounds, value)] += 1
            self._sum += value

    def publish(self) -> None:
        """Publish the totals. Call it every second: Ray forgets a gauge that is not set for two."""
        at_most = list(accumulate(self._counts))
        for tags, values in zip(self._labels, at_most, strict=True):
            self._bucket.set(values, tags)
        self._total.set(self._sum)
        self._count.set(at_most[-1])


class ReplicaSeries:
    """Registers series with Ray. Use it inside the replica, never at import.

    `more` are further labels, which each observation or increment gives.
    """

    def __init__(self, model: str, replica: str) -> None:
        self._tags = {"model": model, "replica": replica}

    def histogram(self, name: str, text: str, bounds: tuple[float, ...], *more: str) -> Histogram:
        metric = Histogram(name, text, boundaries=list(bounds), tag_keys=LABELS + more)
        metric.set_default_tags(self._tags)
        return metric

    def tallied(self, name: str, text: str, bounds: tuple[float, ...]) -> TalliedHistogram:
        """Return a histogram for more values than Ray's can take."""
        bucket = self.gauge(f"{name}_bucket", text, "le")
        return TalliedHistogram(
            bucket, self.gauge(f"{name}_sum", text), self.gauge(f"{name}_count", text), bounds
        )

    def counter(self, name: str, text: str, *more: str) -> Counter:
        metric = Counter(name, text, tag_keys=LABELS + more)
        metric.set_default_tags(self._tags)
        return metric

    def gauge(self, name: str, text: str, *more: str) -> Gauge:
        metric = Gauge(name, text, tag_keys=LABELS + more)
        metric.set_default_tags(self._tags)
        return metric
