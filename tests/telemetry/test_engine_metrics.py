import math

import pytest

from serve_app.api.engine_client import EngineRequest
from serve_app.telemetry import series as made
from serve_app.telemetry.engine_metrics import EngineGauges, EngineLimits, EngineMetrics
from serve_app.telemetry.series import E2E_S, INTER_TOKEN_S, TTFT_S
from serve_app.wire.signals import EngineSignals
from tests.telemetry.stub_metric import SERIES, StubMetric


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> EngineMetrics:
    for kind in ("Histogram", "Counter", "Gauge"):
        monkeypatch.setattr(made, kind, StubMetric)
    SERIES.clear()
    return EngineMetrics("tide", "replica-1")


def test_the_series_are_those_dashboards_and_alerts_name(metrics: EngineMetrics) -> None:
    names = [
        "ttft_seconds", "queue_wait_seconds", "prefill_seconds",
        "inter_token_seconds_bucket", "inter_token_seconds_sum", "inter_token_seconds_count",
        "e2e_seconds", "requests_total", "prompt_tokens_total",
        "completion_tokens_total", "errors_total", "preemptions_total", "prefix_cache_queries_total",
        "prefix_cache_hits_total", "prefix_cache_expected_total",
        "queue_depth", "running_requests", "waiting_requests",
        "running_tokens", "waiting_tokens", "kv_cache_usage_ratio", "kv_cache_tokens", "max_num_seqs",
        "max_num_batched_tokens", "steps_total", "step_seconds_total", "step_sequences_total",
        "step_kv_tokens_total", "step_prefill_tokens_total",
    ]  # fmt: skip
    assert set(SERIES) == {f"llm_{name}" for name in names}


def test_histograms_have_the_boundaries_made_for_them(metrics: EngineMetrics) -> None:
    bounds = {name: series.boundaries for name, series in SERIES.items() if series.boundaries}

    assert bounds == {
        "llm_ttft_seconds": list(TTFT_S),
        "llm_queue_wait_seconds": list(TTFT_S),
        "llm_prefill_seconds": list(TTFT_S),
        "llm_e2e_seconds": list(E2E_S),
    }


def test_tallies_are_published_with_their_boundaries(metrics: EngineMetrics) -> None:
    metrics.inter_token.observe([0.02])
    metrics.publish_tallies()

    written = SERIES["llm_inter_token_seconds_bucket"].values
    assert [float(tags["le"]) for _, tags in written] == [*INTER_TOKEN_S, math.inf]
    assert [value for value, _ in written].count(0) == INTER_TOKEN_S.index(0.02)
    assert SERIES["llm_inter_token_seconds_count"].values == [(1, {})]


def test_reading_and_limits_set_their_gauges(metrics: EngineMetrics) -> None:
    metrics.set_gauges(EngineGauges(1, 2, 30, 40, kv_cache_usage_ratio=0.5))
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


def test_expected_cached_tokens_are_counted(
    metrics: EngineMetrics,
) -> None:
    for expected in (None, 0, 48):
        request = EngineRequest("completions", b"{}", "r-1", expected_cached_tokens=expected)
        metrics.count_call(request)

    assert SERIES["llm_prefix_cache_expected_total"].values == [(48, {})]


def test_step_means_are_counted_as_sums(metrics: EngineMetrics) -> None:
    metrics.count_steps(EngineSignals())  # an idle engine
    metrics.count_steps(
        EngineSignals(steps=50, step_s=0.02, step_batch=8, step_kv_tokens=4000, step_prefill_tokens=0)
    )

    written = {name: series.values for name, series in SERIES.items() if series.values}
    assert written == {
        "llm_steps_total": [(50, {})],
        "llm_step_seconds_total": [(1.0, {})],
        "llm_step_sequences_total": [(400, {})],
        "llm_step_kv_tokens_total": [(200_000, {})],
    }  # and no prefill: Ray refuses to count nothing
