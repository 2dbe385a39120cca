import pickle

import pytest

from serve_app.telemetry import autoscaling_metrics
from serve_app.telemetry.autoscaling_metrics import AutoscalingMetrics, ReplicaTime
from tests.telemetry.stub_metric import SERIES, StubMetric


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> AutoscalingMetrics:
    for kind in ("Counter", "Gauge"):
        monkeypatch.setattr(autoscaling_metrics, kind, StubMetric)
    SERIES.clear()
    return AutoscalingMetrics()


def test_the_series_are_those_dashboards_and_alerts_name(metrics: AutoscalingMetrics) -> None:
    of_models = [
        "wanted_replicas", "target_replicas", "ready_replicas", "starting_replicas", "pending_replicas",
        "draining_replicas", "cold_start_seconds", "replica_capacity_rps", "gpus_per_replica",
        "warm_node", "warm_node_start_seconds", "cold_node_start_seconds", "background_work_seconds",
    ]  # fmt: skip
    metrics.set("tide", {f"autoscaling_{name}": 1.0 for name in of_models}, "queue")
    metrics.set_gauge("autoscaling_knobs_rejected", 0.0)
    metrics.count("autoscaling_handovers_total", model="tide", taker="embed")

    assert {name.removeprefix("llm_autoscaling_"): series.tag_keys for name, series in SERIES.items()} == {
        **dict.fromkeys(of_models, ("model",)),
        "replica_seconds_total": ("model", "state"),
        "binding": ("model", "term"),
        "decisions_total": ("model", "direction"),
        "losses_total": ("model", "cause"),
        "handovers_total": ("model", "taker"),
        "policy_errors_total": (),
        "knobs_rejected": (),
    }


def test_decision_sets_its_gauges_and_earlier_values_go_back_to_zero(metrics: AutoscalingMetrics) -> None:
    """A gauge that is not set again keeps its value."""
    gauges = {"autoscaling_wanted_replicas": 3.0, "autoscaling_ready_replicas": 1.0, "version_share": 0.5}
    metrics.set("tide", gauges, "queue")
    metrics.set("embed", {}, "load")
    metrics.set("tide", {}, "load")
    metrics.withdraw("tide")

    def values(name: str) -> list[tuple[float, dict[str, str]]]:
        return SERIES[f"llm_autoscaling_{name}"].values

    assert values("wanted_replicas") == [(3.0, {"model": "tide"}), (0.0, {"model": "tide"})]
    assert SERIES["llm_version_share"].values[-1] == (0.0, {"model": "tide"})
    assert values("ready_replicas") == [(1.0, {"model": "tide"}), (0.0, {"model": "tide"})]
    binding = [(value, tags["model"], tags["term"]) for value, tags in values("binding")]
    assert binding[:2] == [(1.0, "tide", "queue"), (1.0, "embed", "load")]
    assert sorted(binding[2:4]) == [(0.0, "tide", "queue"), (1.0, "tide", "load")]
    assert sorted(binding[4:]) == [(0.0, "tide", "load"), (0.0, "tide", "queue")]


def test_a_variant_that_is_no_longer_served_goes_back_to_zero(metrics: AutoscalingMetrics) -> None:
    prices = dict.fromkeys(autoscaling_metrics.PRICES, 1.0)
    both = {name: {"ready": 2.0} for name in ("spot", "on-demand")}
    metrics.set_variants("tide", both, prices)
    metrics.set_variants("tide", {"spot": {"ready": 3.0}}, prices)
    metrics.withdraw("tide")
    values = [(tags["variant"], value) for value, tags in SERIES["llm_autoscaling_variant_ready"].values]

    assert sorted(values[2:4]) == [("on-demand", 0.0), ("spot", 3.0)]
    assert sorted(values[4:]) == [("on-demand", 0.0), ("spot", 0.0)]


def test_changes_times_and_errors_are_counted(metrics: AutoscalingMetrics) -> None:
    metrics.count("autoscaling_decisions_total", model="tide", direction="up")
    metrics.count("autoscaling_replica_seconds_total", 1.5, model="tide", state="ready")
    metrics.set_gauge("autoscaling_knobs_rejected", 1.0)
    metrics.set_gauge("autoscaling_knobs_rejected", 0.0)
    metrics.count("autoscaling_policy_errors_total")

    counted = {name.removeprefix("llm_autoscaling_"): series.values for name, series in SERIES.items()}
    assert {name: values for name, values in counted.items() if values} == {
        "decisions_total": [(1, {"model": "tide", "direction": "up"})],
        "replica_seconds_total": [(1.5, {"model": "tide", "state": "ready"})],
        "knobs_rejected": [(1.0, {}), (0.0, {})],
        "policy_errors_total": [(1, {})],
    }


def test_counters_exist_before_the_first_decision(metrics: AutoscalingMetrics) -> None:
    metrics.set("tide", {}, "queue")
    metrics.set("tide", {}, "queue")

    assert SERIES["llm_autoscaling_policy_errors_total"].shown == [{}]
    assert SERIES["llm_autoscaling_decisions_total"].shown == [
        {"model": "tide", "direction": "up"},
        {"model": "tide", "direction": "down"},
    ]
    assert SERIES["llm_autoscaling_losses_total"].shown == [
        {"model": "tide", "cause": cause}
        for cause in ("engine_hung", "engine_died", "process_ended", "node_lost")
    ]
    assert SERIES["llm_autoscaling_replica_seconds_total"].shown == [
        {"model": "tide", "state": "starting"},
        {"model": "tide", "state": "ready"},
        {"model": "tide", "state": "draining"},
    ]


def test_a_copy_in_another_process_registers_series_of_its_own(metrics: AutoscalingMetrics) -> None:
    metrics.set("tide", {}, "queue")
    SERIES.clear()  # as there

    copy = pickle.loads(pickle.dumps(metrics))
    copy.set("tide", {}, "load")

    assert SERIES["llm_autoscaling_binding"].values == [(1.0, {"model": "tide", "term": "load"})]


NOW = 1_700_000_000.0


def test_replica_seconds_are_the_replicas_seen_times_the_time_since() -> None:
    time = ReplicaTime()

    assert time.add("tide", {"starting": 2, "ready": 1, "draining": 0}, NOW) == {}
    time.add("embed", {"ready": 4}, NOW)
    assert time.add("tide", {"ready": 3}, NOW + 0.5) == {"starting": 1.0, "ready": 0.5}
    assert time.add("tide", {"ready": 0}, NOW + 2.0) == {"ready": 4.5}
    assert time.add("tide", {"ready": 1}, NOW + 3.0) == {}
    assert time.add("embed", {"ready": 4}, NOW + 2.0) == {"ready": 8.0}


def test_long_silence_counts_as_ten_replica_seconds() -> None:
    time = ReplicaTime()
    time.add("tide", {"ready": 2}, NOW)

    assert time.add("tide", {"ready": 2}, NOW + 3609.0) == {"ready": 20.0}
    # A clock that is set back counts nothing.
    assert time.add("tide", {"ready": 2}, NOW - 60.0) == {}
    assert time.add("tide", {"ready": 2}, NOW - 59.0) == {"ready": 2.0}
