"""The metrics of the autoscaling policy, labelled with the model. Exported by Ray Serve's controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.util.metrics import Counter, Gauge

_GAUGES = {
    "wanted_replicas": "Replicas the policy wants, before delays and mode.",
    "target_replicas": "Replicas asked for.",
    "ready_replicas": "Replicas that take requests.",
    "starting_replicas": "Replicas that are loading.",
    "pending_replicas": "Replicas asked for that have no place yet.",
    "draining_replicas": "Replicas that finish their streams before they stop.",
    "cold_start_seconds": "Typical time from a replica's process to its readiness, as measured.",
    "replica_capacity_rps": "Requests a second one replica can carry within its targets, as learned.",
}


class AutoscalingMetrics:
    """Registers the series with Ray; build it inside the process that exports them."""

    def __init__(self) -> None:
        self._gauges = {
            name: Gauge(f"llm_autoscaling_{name}", text, tag_keys=("model",))
            for name, text in _GAUGES.items()
        }
        self._binding = Gauge(
            "llm_autoscaling_binding",
            "1 for what set the target at the last decision, 0 for what once did.",
            tag_keys=("model", "term"),
        )
        self._decisions = Counter(
            "llm_autoscaling_decisions_total", "Changes of the target.", tag_keys=("model", "direction")
        )
        self._errors = Counter(
            "llm_autoscaling_policy_errors_total", "Exceptions of the policy; the target was kept."
        )
        self._terms: dict[str, set[str]] = {}

    def set(self, model: str, values: Mapping[str, float], binding: str) -> None:
        """Publish one decision's numbers, by the names of the gauges, and what bound it."""
        for name, value in values.items():
            self._gauges[name].set(value, tags={"model": model})
        terms = self._terms.setdefault(model, set())
        terms.add(binding)
        for term in terms:
            self._binding.set(float(term == binding), tags={"model": model, "term": term})

    def count_change(self, model: str, old: int, new: int) -> None:
        """Count a change of the target."""
        self._decisions.inc(1, tags={"model": model, "direction": "up" if new > old else "down"})

    def count_error(self) -> None:
        """Count a policy that raised."""
        self._errors.inc(1)

    def __reduce__(self) -> Any:
        """Series belong to one process: a copy elsewhere registers its own."""
        return AutoscalingMetrics, ()
