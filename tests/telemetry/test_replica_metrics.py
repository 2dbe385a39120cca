import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serve_app.api.engine_client import OUTCOMES
from serve_app.ledger.usage import Account, Amounts
from serve_app.settings.keys_file import OTHER_KEYS
from serve_app.settings.model_names import Adapter
from serve_app.telemetry import replica_metrics
from serve_app.telemetry.exposition import merge_expositions
from serve_app.telemetry.replica_metrics import (
    COLD_WAIT_S,
    E2E_S,
    INTER_TOKEN_S,
    MOST_KEYS,
    TTFT_S,
    ApiKeyMetrics,
    BudgetMetrics,
    EngineGauges,
    EngineLimits,
    EngineMetrics,
    IngressMetrics,
    LaneLoad,
    ReplicaSeries,
)
from serve_app.wire.data_plane import Call
from serve_app.wire.signals import EngineSignals
from tests.telemetry.stub_metric import SERIES, StubMetric


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("Histogram", "Counter", "Gauge"):
        monkeypatch.setattr(replica_metrics, kind, StubMetric)
    SERIES.clear()


@pytest.fixture
def metrics() -> EngineMetrics:
    return EngineMetrics("tide", "replica-1")


def test_engine_series_have_the_names_that_dashboards_use(metrics: EngineMetrics) -> None:
    histograms = [f"{name}_seconds" for name in ("ttft", "queue_wait", "prefill", "inter_token", "e2e")]
    names = [
        *(f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")),
        "requests_total", "prompt_tokens_total",
        "completion_tokens_total", "errors_total", "preemptions_total", "prefix_cache_queries_total",
        "prefix_cache_hits_total", "prefix_cache_expected_total",
        "queue_depth", "running_requests", "waiting_requests",
        "running_tokens", "waiting_tokens", "kv_cache_usage_ratio", "kv_cache_tokens", "max_num_seqs",
        "max_num_batched_tokens", "steps_total", "step_seconds_total", "step_sequences_total",
        "step_kv_tokens_total", "step_prefill_tokens_total",
        "usage_tokens_total", "usage_gpu_seconds_total", "usage_unused_gpu_seconds_total", "usage_cost_total",
        "usage_unwritten_seconds",
        "adapter_requests_total", "adapter_loads_total", "adapter_load_seconds_total",
    ]  # fmt: skip
    assert set(SERIES) == {f"llm_{name}" for name in names}


def test_series_of_a_variants_replica_name_the_variant() -> None:
    EngineMetrics("tide", "replica-1", "spot")

    tags = {"model": "tide", "replica": "replica-1", "variant": "spot"}
    assert all(series.tags == tags for series in SERIES.values())
    assert SERIES["llm_steps_total"].tag_keys == tuple(tags)


def test_ingress_series_have_the_names_and_labels_that_dashboards_use() -> None:
    IngressMetrics("tide", "replica-1")

    assert {name: series.tag_keys for name, series in SERIES.items()} == {
        f"llm_{name}": ("model", "replica", *more)
        for name, more in {
            "held_requests": (),
            "oldest_held_seconds": (),
            "arrivals_total": (),
            "rejected_total": ("reason",),
            "abandoned_total": (),
            "responses_total": ("outcome",),
            "background_held_requests": (),
            "background_responses_total": ("outcome",),
            "cold_wait_seconds": (),
            "lost_wait_seconds": (),
            "user_ttft_seconds": ("cold",),
        }.items()
    }
    assert all(series.tags == {"model": "tide", "replica": "replica-1"} for series in SERIES.values())


def test_the_most_used_budgets_are_published() -> None:
    metrics = BudgetMetrics("replica-1")
    metrics.publish({f"key/{number}": number / 200 for number in range(200)} | {"team/shop": 1.5})

    values = SERIES["llm_budget_used_ratio"].values
    assert values[:2] == [(1.5, {"budget": "team/shop"}), (0.995, {"budget": "key/199"})]
    assert len(values) == 100


def test_key_series_tell_the_file_and_requests_above_limits() -> None:
    metrics = ApiKeyMetrics("replica-1")
    metrics.publish(12, invalid=True)
    metrics.count_limited("web", "tokens_per_minute")

    assert {name: (series.tag_keys, series.values) for name, series in SERIES.items()} == {
        "llm_api_keys": (("replica",), [(12, {})]),
        "llm_api_keys_file_invalid": (("replica",), [(1, {})]),
        "llm_rate_limited_total": (
            ("replica", "key", "limit"),
            [(1, {"key": "web", "limit": "tokens_per_minute"})],
        ),
    }


def test_histograms_have_ascending_boundaries() -> None:
    IngressMetrics("tide", "replica-1")

    assert {name: series.boundaries for name, series in SERIES.items() if series.boundaries} == {
        "llm_cold_wait_seconds": list(COLD_WAIT_S),
        "llm_lost_wait_seconds": list(COLD_WAIT_S),
        "llm_user_ttft_seconds": list(TTFT_S),
    }
    for bounds in (TTFT_S, INTER_TOKEN_S, E2E_S, COLD_WAIT_S):
        assert list(bounds) == sorted(set(bounds))
        assert {10.0} <= set(bounds)


def test_outcome_counters_exist_before_the_first_request() -> None:
    """The increase of a series that begins with its first error does not contain that error."""
    IngressMetrics("tide", "replica-1")

    assert {name: series.shown for name, series in SERIES.items() if series.shown} == {
        "llm_arrivals_total": [{}],
        "llm_abandoned_total": [{}],
        "llm_responses_total": [{"outcome": outcome} for outcome in OUTCOMES],
        "llm_background_responses_total": [{"outcome": outcome} for outcome in OUTCOMES],
    }


def test_reading_and_limits_set_their_gauges(metrics: EngineMetrics) -> None:
    metrics.set_gauges(EngineGauges({"standard": LaneLoad(1, 2, 30, 40)}, kv_cache_usage_ratio=0.5))
    metrics.set_limits(EngineLimits(kv_cache_tokens=5000, max_num_seqs=8, max_num_batched_tokens=512))

    assert {name: series.values[0][0] for name, series in SERIES.items() if series.values} == {
        "llm_queue_depth": 2,
        "llm_running_requests": 1,
        "llm_waiting_requests": 2,
        "llm_running_tokens": 30,
        "llm_waiting_tokens": 40,
        "llm_kv_cache_usage_ratio": 0.5,
        "llm_kv_cache_tokens": 5000,
        "llm_max_num_seqs": 8,
        "llm_max_num_batched_tokens": 512,
    }


def test_expected_cached_tokens_are_counted(metrics: EngineMetrics) -> None:
    for expected in (None, 0, 48):
        metrics.count_call(Call(0, "completions", b"{}", "r-1", 0.0, 0.0, expected_cached_tokens=expected))

    assert SERIES["llm_prefix_cache_expected_total"].values == [(48, {})]


def test_requests_and_loads_are_counted_by_adapter(metrics: EngineMetrics) -> None:
    metrics.count_call(Call(0, "completions", b"{}", "r-1", 0.0, 0.0, adapter=Adapter("pirate", "embedded")))
    metrics.count_adapter_load("pirate", 0.25)

    label = {"adapter": "pirate"}
    assert SERIES["llm_adapter_requests_total"].values == [(1, label)]
    assert SERIES["llm_adapter_loads_total"].values == [(1, label)]
    assert SERIES["llm_adapter_load_seconds_total"].values == [(0.25, label)]


def test_further_adapters_are_counted_together(metrics: EngineMetrics) -> None:
    for number in range(MOST_KEYS + 2):
        metrics.count_adapter_load(f"adapter-{number}", 0.1)

    labels = [labels["adapter"] for _, labels in SERIES["llm_adapter_loads_total"].values]
    assert labels[-2:] == [OTHER_KEYS] * 2
    assert len(set(labels)) == MOST_KEYS + 1


def test_step_means_are_counted_as_sums_and_zeros_are_not(metrics: EngineMetrics) -> None:
    metrics.count_steps(EngineSignals())  # an idle engine
    metrics.count_steps(
        EngineSignals(steps=50, step_s=0.02, step_batch=8, step_kv_tokens=4000, step_prefill_tokens=0)
    )

    assert {name: series.values for name, series in SERIES.items() if series.values} == {
        "llm_steps_total": [(50, {})],
        "llm_step_seconds_total": [(1.0, {})],
        "llm_step_sequences_total": [(400, {})],
        "llm_step_kv_tokens_total": [(200_000, {})],
    }


def test_tallied_histogram_publishes_totals_up_to_each_bound() -> None:
    histogram = ReplicaSeries(model="tide", replica="replica-1").tallied("llm_x_seconds", "X.", (0.1, 1.0))

    def published() -> tuple[dict[str, float], float, float]:
        for series in SERIES.values():
            series.values.clear()
        histogram.publish()
        ((total, _),) = SERIES["llm_x_seconds_sum"].values
        ((count, _),) = SERIES["llm_x_seconds_count"].values
        return {tags["le"]: value for value, tags in SERIES["llm_x_seconds_bucket"].values}, total, count

    # All buckets are there at first, or PromQL's `increase` would miss the first values.
    assert published() == ({"0.1": 0, "1.0": 0, "+Inf": 0}, 0, 0)
    histogram.observe([0.05, 0.1, 0.5, 2.0])
    assert published() == ({"0.1": 2, "1.0": 3, "+Inf": 4}, pytest.approx(2.65), 4)


def test_tallies_of_each_label_are_published_from_its_first_value() -> None:
    histogram = ReplicaSeries(model="tide", replica="replica-1").tallied(
        "llm_x_seconds", "X.", (1.0,), "lane"
    )
    histogram.publish()
    assert not SERIES["llm_x_seconds_bucket"].values

    histogram.observe([0.5], lane="standard")
    histogram.observe([0.5, 2.0], lane="background")
    histogram.publish()

    assert SERIES["llm_x_seconds_count"].values == [(1, {"lane": "standard"}), (2, {"lane": "background"})]
    assert SERIES["llm_x_seconds_bucket"].values[-1] == (2, {"lane": "background", "le": "+Inf"})
    assert SERIES["llm_x_seconds_bucket"].tag_keys == ("model", "replica", "lane", "le")


def test_engine_publishes_its_histograms_as_gauges_which_go_with_its_process(metrics: EngineMetrics) -> None:
    metrics.ttft.observe([0.02], lane="standard")
    metrics.inter_token.observe([0.02])
    metrics.publish_histograms()

    bounds = {
        "ttft": TTFT_S,
        "queue_wait": TTFT_S,
        "prefill": TTFT_S,
        "inter_token": INTER_TOKEN_S,
        "e2e": E2E_S,
    }
    for name, expected in bounds.items():
        written = SERIES[f"llm_{name}_seconds_bucket"].values
        assert [float(tags["le"]) for _, tags in written] == [*expected, math.inf]
    assert SERIES["llm_inter_token_seconds_count"].values == [(1, {})]
    assert not any(series.boundaries for series in SERIES.values())


def test_prometheus_reads_one_histogram_where_ray_has_three_gauges() -> None:
    lines = [
        "# HELP ray_llm_x_seconds_count X.",
        "# TYPE ray_llm_x_seconds_count gauge",
        "ray_llm_x_seconds_count 4.0",
        "# HELP ray_llm_x_seconds_bucket X.",
        "# TYPE ray_llm_x_seconds_bucket gauge",
        'ray_llm_x_seconds_bucket{le="0.1"} 2.0',
        'ray_llm_x_seconds_bucket{le="+Inf"} 4.0',
        "# HELP ray_llm_x_seconds_sum X.",
        "# TYPE ray_llm_x_seconds_sum gauge",
        "ray_llm_x_seconds_sum 2.65",
    ]

    (family,) = text_string_to_metric_families(merge_expositions(["\n".join(lines)]))

    assert (family.name, family.type, family.documentation) == ("llm_x_seconds", "histogram", "X.")
    assert {sample.name: sample.value for sample in family.samples if "le" not in sample.labels} == {
        "llm_x_seconds_count": 4.0,
        "llm_x_seconds_sum": 2.65,
    }


def counted(name: str) -> list[tuple[float, dict[str, str]]]:
    return SERIES[f"llm_usage_{name}"].values


def test_usage_is_counted_by_key_and_lane(metrics: EngineMetrics) -> None:
    alice, idle = Account("tide", "alice", "background"), Account("tide", state="idle")

    metrics.count_usage({alice: Amounts(1, 30, 10, 0, 4.0, 0.5), idle: Amounts(gpu_seconds=2.0)}, 3.0)

    payer = {"key": "alice", "lane": "background"}
    assert counted("tokens_total") == [(30, payer | {"kind": "prompt"}), (10, payer | {"kind": "cached"})]
    assert counted("gpu_seconds_total") == [(4.0, payer)]
    assert counted("unused_gpu_seconds_total") == [(2.0, {"state": "idle"})]
    assert counted("cost_total") == [(0.5, payer | {"state": "used"})]
    assert counted("unwritten_seconds") == [(3.0, {})]


def test_keys_beyond_the_bound_are_counted_as_other(metrics: EngineMetrics) -> None:
    for number in range(MOST_KEYS + 2):
        metrics.count_usage({Account("tide", f"key-{number}", "standard"): Amounts(gpu_seconds=1.0)}, 0.0)
    metrics.count_usage({Account("tide", "key-0", "standard"): Amounts(gpu_seconds=1.0)}, 0.0)

    keys = [tags["key"] for _, tags in counted("gpu_seconds_total")]
    assert len(set(keys)) == MOST_KEYS + 1
    assert keys[-3:] == [OTHER_KEYS, OTHER_KEYS, "key-0"]
