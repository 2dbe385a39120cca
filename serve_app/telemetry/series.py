"""Make the series of one replica, each labelled with the model and the replica."""

from __future__ import annotations

from ray.util.metrics import Counter, Gauge, Histogram

LABELS = ("model", "replica")


def show_zero(counter: Counter, **tags: str) -> None:
    """Export `counter` before it has counted anything, with these `tags` beside its default ones.

    PromQL's `increase` and `rate` see differences only. If a series appears with its first increment, they
    miss that increment, and it may be the only one.
    """
    # `inc` refuses zero; what it calls after that check does not.
    counter._record(0.0, tags)


class ReplicaSeries:
    """Registers series with Ray; use it inside the replica, never at import."""

    def __init__(self, model: str, replica: str) -> None:
        self._tags = {"model": model, "replica": replica}

    def histogram(self, name: str, text: str, bounds: tuple[float, ...], *more: str) -> Histogram:
        """A histogram with upper `bounds`, and `more` labels that each observation gives."""
        metric = Histogram(name, text, boundaries=list(bounds), tag_keys=LABELS + more)
        metric.set_default_tags(self._tags)
        return metric

    def counter(self, name: str, text: str, *more: str) -> Counter:
        """A counter, with `more` labels that each increment gives."""
        metric = Counter(name, text, tag_keys=LABELS + more)
        metric.set_default_tags(self._tags)
        return metric

    def gauge(self, name: str, text: str) -> Gauge:
        """A gauge."""
        metric = Gauge(name, text, tag_keys=LABELS)
        metric.set_default_tags(self._tags)
        return metric
