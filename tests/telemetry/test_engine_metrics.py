from __future__ import annotations

from typing import Any

import pytest

from serve_app.api.errors import ApiError
from serve_app.telemetry import series as made
from serve_app.telemetry.buckets import E2E_S, INTER_TOKEN_S, TTFT_S
from serve_app.telemetry.engine_metrics import EngineGauges, EngineMetrics
from tests.telemetry.stub_metric import SERIES, StubMetric


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> EngineMetrics:
    for kind in ("Histogram", "Counter", "Gauge"):
        monkeypatch.setattr(made, kind, StubMetric)
    SERIES.clear()
    return EngineMetrics("tide", "replica-1")


def test_the_series_are_those_dashboards_and_alerts_name(metrics: EngineMetrics) -> None:
    assert set(SERIES) == {
        "llm_ttft_seconds",
        "llm_inter_token_seconds",
        "llm_e2e_seconds",
        "llm_requests_total",
        "llm_prompt_tokens_total",
        "llm_completion_tokens_total",
        "llm_errors_total",
        "llm_preemptions_total",
        "llm_prefix_cache_queries_total",
        "llm_prefix_cache_hits_total",
        "llm_queue_depth",
        "llm_running_requests",
        "llm_waiting_requests",
        "llm_running_tokens",
        "llm_waiting_tokens",
        "llm_kv_cache_usage_ratio",
    }


def test_every_series_carries_its_model_and_its_replica(metrics: EngineMetrics) -> None:
    for series in SERIES.values():
        assert series.tags == {"model": "tide", "replica": "replica-1"}
        assert series.tag_keys[:2] == ("model", "replica")


def test_histograms_have_the_boundaries_made_for_them(metrics: EngineMetrics) -> None:
    bounds = {name: series.boundaries for name, series in SERIES.items() if series.boundaries}

    assert bounds == {
        "llm_ttft_seconds": list(TTFT_S),
        "llm_inter_token_seconds": list(INTER_TOKEN_S),
        "llm_e2e_seconds": list(E2E_S),
    }


def test_a_reading_goes_to_the_gauges_of_its_names(metrics: EngineMetrics) -> None:
    metrics.set_gauges(
        EngineGauges(
            running_requests=1,
            waiting_requests=2,
            running_tokens=30,
            waiting_tokens=40,
            kv_cache_usage_ratio=0.5,
        )
    )

    written: dict[str, Any] = {name: series.values[0][0] for name, series in SERIES.items() if series.values}
    assert written == {
        "llm_queue_depth": 2,
        "llm_running_requests": 1,
        "llm_waiting_requests": 2,
        "llm_running_tokens": 30,
        "llm_waiting_tokens": 40,
        "llm_kv_cache_usage_ratio": 0.5,
    }


def test_errors_are_counted_by_their_code(metrics: EngineMetrics) -> None:
    metrics.count_error(ApiError(400, "no", code="invalid_value"))
    metrics.count_error(ApiError(500, "no"))

    assert SERIES["llm_errors_total"].values == [(1, {"type": "invalid_value"}), (1, {"type": "unknown"})]
    assert SERIES["llm_errors_total"].tag_keys == ("model", "replica", "type")
