"""The metrics of the batch runner."""

from collections.abc import Mapping

from ray.util.metrics import Counter, Gauge

from serve_app.wire.batches import BatchBacklog

_LABELS = ("model", "replica")
_NEVER_S = 604_800.0
"""Shown for a batch of which no line is being answered: the longest completion window."""


class BatchMetrics:
    """Registers the series with Ray. Build it inside the replica, never at import."""

    def __init__(self, replica: str) -> None:
        self._replica = replica
        self._open = _gauge("llm_batches", "Batches that are being worked on.")
        self._lines = _gauge("llm_batch_lines", "Lines of open batches without an answer.")
        self._in_flight = _gauge("llm_batch_lines_in_flight", "Lines of batches at ingress replicas.")
        self._late = _gauge("llm_batches_late", "Batches that would miss their completion window.")
        text = "By how much the latest batch would miss its completion window."
        self._late_s = _gauge("llm_batch_late_seconds", text)
        text = "Lines of batches that got their final answer, by outcome."
        self._answered = Counter("llm_batch_lines_total", text, tag_keys=(*_LABELS, "outcome"))

    def publish(self, backlogs: Mapping[str, BatchBacklog]) -> None:
        """Publish what is left. Call it every second: Ray forgets a gauge that is not set for two."""
        for model, left in backlogs.items():
            tags = {"model": model, "replica": self._replica}
            self._open.set(left.batches, tags)
            self._lines.set(left.lines, tags)
            self._in_flight.set(left.in_flight, tags)
            self._late.set(left.late, tags)
            self._late_s.set(_NEVER_S if left.late_s is None else left.late_s, tags)

    def count(self, model: str, outcome: str, lines: int) -> None:
        """Count answered lines. `outcome` is `completed` or `failed`."""
        self._answered.inc(lines, {"model": model, "replica": self._replica, "outcome": outcome})


def _gauge(name: str, text: str) -> Gauge:
    return Gauge(name, text, tag_keys=_LABELS)
