"""The metrics of the autoscaling policy, labelled with the model. Exported by Ray Serve's controller."""

from collections.abc import Container, Mapping
from typing import Any

from ray.util.metrics import Counter, Gauge

from serve_app.patches.ray import show_zero
from serve_app.wire.phases import CAUSES

_GAUGES = {
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
    """Registers the series with Ray. Build it in the process that exports them."""

    def __init__(self) -> None:
        self._gauges = {
            name: Gauge(f"llm_autoscaling_{name}", text, tag_keys=("model",))
            for name, text in _GAUGES.items()
        }
        self._binding = Gauge(
            "llm_autoscaling_binding",
            "1 for the term that set the target at the last decision, 0 for terms that once did.",
            tag_keys=("model", "term"),
        )
        self._decisions = Counter(
            "llm_autoscaling_decisions_total", "Changes of the target.", tag_keys=("model", "direction")
        )
        self._errors = Counter(
            "llm_autoscaling_policy_errors_total", "Exceptions of the policy; the target was kept."
        )
        self._rejected = Gauge(
            "llm_autoscaling_knobs_rejected",
            "1 while the last knobs are invalid and the earlier ones stay in force, else 0.",
        )
        self._replica_seconds = Counter(
            "llm_autoscaling_replica_seconds_total",
            "Time of all replicas together, by their state.",
            tag_keys=("model", "state"),
        )
        self._losses = Counter(
            "llm_autoscaling_losses_total",
            "Replicas that served and were lost, by cause.",
            tag_keys=("model", "cause"),
        )
        self._handovers = Counter(
            "llm_autoscaling_handovers_total",
            "Places of replicas that a model gave to another model, whose requests waited.",
            tag_keys=("model", "taker"),
        )
        self._of_variant: dict[str, Gauge] = {}
        """Registered with the first model that has variants, as `_prices`."""
        self._prices: dict[str, Gauge] = {}
        self._share: Gauge | None = None
        """Registered with the first version, as the next."""
        self._fallbacks: Counter | None = None
        self._variants: dict[str, set[str]] = {}
        self._terms: dict[str, set[str]] = {}
        show_zero(self._errors)

    def set(self, model: str, values: Mapping[str, float], binding: str) -> None:
        """Publish one decision's numbers, by the names of the gauges, and the term that set the target."""
        for name, value in values.items():
            self._gauges[name].set(value, tags={"model": model})
        if model not in self._terms:
            for direction in ("up", "down"):
                show_zero(self._decisions, model=model, direction=direction)
            for state in ("starting", "ready", "draining"):
                show_zero(self._replica_seconds, model=model, state=state)
            for cause in CAUSES:
                show_zero(self._losses, model=model, cause=cause)
        terms = self._terms.setdefault(model, set())
        terms.add(binding)
        for term in terms:
            self._binding.set(float(term == binding), tags={"model": model, "term": term})

    def set_variants(
        self, model: str, variants: Mapping[str, Mapping[str, float]], prices: Mapping[str, float]
    ) -> None:
        """Publish the numbers of each variant of a model, and the prices of the whole."""
        self._of_variant = self._of_variant or {
            name: Gauge(f"llm_autoscaling_variant_{name}", text, tag_keys=("model", "variant"))
            for name, text in _OF_VARIANT.items()
        }
        self._prices = self._prices or {
            name: Gauge(f"llm_autoscaling_{name}", text, tag_keys=("model",)) for name, text in PRICES.items()
        }
        known = self._variants.setdefault(model, set())
        known.update(variants)
        for variant in known:  # zeros for a variant that is no longer served
            for name, gauge in self._of_variant.items():
                gauge.set(variants.get(variant, {}).get(name, 0.0), tags={"model": model, "variant": variant})
        for name, gauge in self._prices.items():
            gauge.set(prices[name], tags={"model": model})

    def set_share(self, version: str, share: float) -> None:
        """Publish the share of the conversations that a version gets."""
        if self._share is None:
            text = "The share of the conversations that a version of a model gets, 0 to 1."
            self._share = Gauge("llm_version_share", text, tag_keys=("model",))
            text = "Versions that lost their share because they were worse than the old version."
            self._fallbacks = Counter("llm_version_fallbacks_total", text, tag_keys=("model",))
        self._share.set(share, tags={"model": version})

    def count_fallback(self, version: str) -> None:
        """Count a version that lost its share by itself."""
        if self._fallbacks is not None:
            self._fallbacks.inc(1, tags={"model": version})

    def withdraw(self, model: str) -> None:
        """Publish zeros for a model that is no longer served: Ray exports the last value of a series."""
        if model in self._variants:
            self.set_variants(model, {}, dict.fromkeys(PRICES, 0.0))
            del self._variants[model]
        for gauge in self._gauges.values():
            gauge.set(0.0, tags={"model": model})
        for term in self._terms.pop(model, ()):
            self._binding.set(0.0, tags={"model": model, "term": term})

    def count_change(self, model: str, old: int, new: int) -> None:
        """Count a change of the target."""
        self._decisions.inc(1, tags={"model": model, "direction": "up" if new > old else "down"})

    def count_loss(self, model: str, cause: str) -> None:
        """Count a lost replica."""
        self._losses.inc(1, tags={"model": model, "cause": cause})

    def count_handover(self, model: str, taker: str) -> None:
        """Count places that `model` gives to `taker` at one decision."""
        self._handovers.inc(1, tags={"model": model, "taker": taker})

    def count_replica_seconds(self, model: str, seconds: Mapping[str, float]) -> None:
        """Count the time of replicas, by their state."""
        for state, amount in seconds.items():
            if amount > 0:  # Ray refuses to count zero
                self._replica_seconds.inc(amount, tags={"model": model, "state": state})

    def set_knobs_rejected(self, rejected: bool) -> None:
        """Publish whether the last knobs are invalid."""
        self._rejected.set(float(rejected))

    def count_error(self) -> None:
        """Count an exception of the policy."""
        self._errors.inc(1)

    def __reduce__(self) -> Any:
        """Series belong to one process. A copy in another process registers its own."""
        return AutoscalingMetrics, ()
