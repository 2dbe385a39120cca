"""A histogram for what happens with every token."""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate

from ray.util.metrics import Gauge


class TalliedHistogram:
    """A histogram that is counted here; Ray is told the totals once a second.

    Ray's own is told of each value, and the metrics agent of the node records each of them once more, in
    Python: 10 µs per token there, so that an agent would be full at 100,000 tokens per second on its node.

    Args:
        bucket: Set to how many values were at most `le`, its additional label.
        total: Set to the sum of all values.
        count: Set to their number.
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
