"""The metrics of the autoscaling policy, labelled with the model. Exported by Ray Serve's controller."""

from collections.abc import Container, Mapping
from typing import Any

from ray.util.metrics import Counter, Gauge

from serve_app.patches.ray import show_zero
from serve_app.wire.phases import CAUSES

_OF_MODEL = {
    "wanted_replicas": "Replicas that the terms need within the bounds: the target without delays and mode.",
    "target_replicas": "Replicas that the policy asks Ray for.",
    "ready_replicas": "Replicas that take requests.",
    "starting_replicas": "Replicas that are loading.",
    "pending_replicas": "Replicas asked for that no node has room for yet.",
    "draining_replicas": "Replicas that finish their streams before they stop.",
    "cold_start_seconds": "Typical time from the next replica's process to its readiness, as measured.",
    "warm_node_start_seconds": "The same on a node where vLLM is imported before a replica starts.",
    "cold_node_start_seconds": "The same on a node where it is not, such as one that has just come up.",
    "warm_node": "1 while a node with a warm zygote has room for the next replica, else 0.",
    "replica_capacity_rps": "Requests per second that one replica can serve within the targets, as learned.",
    "background_work_seconds": "Estimated time of one replica for all requests of the lane background.",
    "gpus_per_replica": "GPUs one replica takes; 0 on a CPU.",
}
_OF_VARIANT = {
    "target": "Replicas of a variant that the policy asks Ray for.",
    "ready": "Replicas of a variant that take requests.",
    "usd_per_hour": "Price of the replicas of a variant that the policy asks for, in USD per hour.",
    "capacity_rps": "Requests per second that one replica of a variant serves within the targets.",
    "at_once": "Replicas of a variant that may end at once, and are therefore spare.",
    "dry_s": "Seconds until a variant without nodes is tried again; 0 if it is not dry.",
}
PRICES = {
    "usd_per_hour": "Price of all replicas that the policy asks for, in USD per hour.",
    "dearest_usd_per_hour": "Price of the dearest variant alone for the same work, in USD per hour.",
}
GAUGES = {
    **{f"autoscaling_{name}": (text, ("model",)) for name, text in {**_OF_MODEL, **PRICES}.items()},
    **{f"autoscaling_variant_{name}": (text, ("model", "variant")) for name, text in _OF_VARIANT.items()},
    "autoscaling_binding": (
        "1 for the term that set the target at the last decision, 0 for terms that once did.",
        ("model", "term"),
    ),
    "autoscaling_knobs_rejected": (
        "1 while the last knobs are invalid and the earlier ones stay in force, else 0.",
        (),
    ),
    "version_share": ("The share of the conversations that a version of a model gets, 0 to 1.", ("model",)),
}
"""The text and the labels of each gauge."""
COUNTERS = {
    "autoscaling_decisions_total": ("Changes of the target.", ("model", "direction")),
    "autoscaling_policy_errors_total": ("Exceptions of the policy; the target was kept.", ()),
    "autoscaling_replica_seconds_total": (
        "Time of all replicas together, by their state.",
        ("model", "state"),
    ),
    "autoscaling_losses_total": ("Replicas that served and were lost, by cause.", ("model", "cause")),
    "autoscaling_handovers_total": (
        "Places of replicas that a model gave to another model, whose requests waited.",
        ("model", "taker"),
    ),
    "version_fallbacks_total": (
        "Versions that lost their share because they were worse than the old version.",
        ("model",),
    ),
}

_LONGEST_GAP_S = 10.0
"""As long as a report counts. In a longer gap the number of replicas is unknown: a step of the clock, or an
hour without a controller, must not count as an hour of GPUs."""


class ReplicaTime:
    """Adds up the time of replicas by their state. Times GPUs per replica, it is the cost of a model."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, Mapping[str, int]]] = {}

    def forget_except(self, models: Container[str]) -> None:
        self._last = {name: last for name, last in self._last.items() if name in models}

    def add(self, model: str, replicas: Mapping[str, int], now: float) -> dict[str, float]:
        """Return the replica-seconds by state since the last call: its `replicas`, times the elapsed time.

        The first call returns nothing. More than ten seconds count as ten. `now` is Unix time in seconds; if
        it goes back, nothing is counted.
        """
        at, seen = self._last.get(model, (now, {}))
        self._last[model] = (now, replicas)
        elapsed = min(max(0.0, now - at), _LONGEST_GAP_S)
        return {state: count * elapsed for state, count in seen.items() if count and elapsed}


class AutoscalingMetrics:
    """Registers each series with Ray at its first value. Build it in the process that exports them."""

    def __init__(self) -> None:
        self._series: dict[str, Any] = {}
        self._gauges_of: dict[str, set[str]] = {}
        self._variants: dict[str, set[str]] = {}
        self._terms: dict[str, set[str]] = {}
        show_zero(self._counter("autoscaling_policy_errors_total"))

    def set_gauge(self, name: str, value: float, **labels: str) -> None:
        """Publish the value of a gauge, by its name in `GAUGES`."""
        if name not in self._series:
            text, label_names = GAUGES[name]
            self._series[name] = Gauge(f"llm_{name}", text, tag_keys=label_names)
        self._series[name].set(value, tags=labels)

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        """Add to a counter, by its name in `COUNTERS`. Ray refuses to add 0."""
        self._counter(name).inc(amount, tags=labels)

    def _counter(self, name: str) -> Counter:
        if name not in self._series:
            text, label_names = COUNTERS[name]
            self._series[name] = Counter(f"llm_{name}", text, tag_keys=label_names)
        return self._series[name]

    def set(self, model: str, values: Mapping[str, float], binding: str) -> None:
        """Publish one decision's numbers, by the names of the gauges, and the term that set the target."""
        self._gauges_of.setdefault(model, set()).update(values)
        for name, value in values.items():
            self.set_gauge(name, value, model=model)
        if model not in self._terms:
            for direction in ("up", "down"):
                show_zero(self._counter("autoscaling_decisions_total"), model=model, direction=direction)
            for state in ("starting", "ready", "draining"):
                show_zero(self._counter("autoscaling_replica_seconds_total"), model=model, state=state)
            for cause in CAUSES:
                show_zero(self._counter("autoscaling_losses_total"), model=model, cause=cause)
        terms = self._terms.setdefault(model, set())
        terms.add(binding)
        for term in terms:
            self.set_gauge("autoscaling_binding", float(term == binding), model=model, term=term)

    def set_variants(
        self, model: str, variants: Mapping[str, Mapping[str, float]], prices: Mapping[str, float]
    ) -> None:
        """Publish the numbers of each variant of a model, and the prices of the whole."""
        known = self._variants.setdefault(model, set())
        known.update(variants)
        for variant in known:  # zeros for a variant that is no longer served
            for name in _OF_VARIANT:
                value = variants.get(variant, {}).get(name, 0.0)
                self.set_gauge(f"autoscaling_variant_{name}", value, model=model, variant=variant)
        for name in PRICES:
            self.set_gauge(f"autoscaling_{name}", prices[name], model=model)

    def withdraw(self, model: str) -> None:
        """Publish zeros for a model that is no longer served: Ray exports the last value of a series."""
        if model in self._variants:
            self.set_variants(model, {}, dict.fromkeys(PRICES, 0.0))
            del self._variants[model]
        for name in self._gauges_of.pop(model, ()):
            self.set_gauge(name, 0.0, model=model)
        for term in self._terms.pop(model, ()):
            self.set_gauge("autoscaling_binding", 0.0, model=model, term=term)

    def __reduce__(self) -> Any:
        """Series belong to one process. A copy in another process registers its own."""
        return AutoscalingMetrics, ()
