import pytest

from serve_app.api.engine_client import OUTCOMES
from serve_app.telemetry import series as made
from serve_app.telemetry.ingress_metrics import COLD_WAIT_S, IngressMetrics
from serve_app.telemetry.series import TTFT_S
from tests.telemetry.stub_metric import SERIES, StubMetric


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> IngressMetrics:
    for kind in ("Histogram", "Counter", "Gauge"):
        monkeypatch.setattr(made, kind, StubMetric)
    SERIES.clear()
    return IngressMetrics("tide", "replica-1")


def test_the_series_are_those_dashboards_and_alerts_name(metrics: IngressMetrics) -> None:
    assert {name: series.tag_keys[2:] for name, series in SERIES.items()} == {
        "llm_held_requests": (),
        "llm_oldest_held_seconds": (),
        "llm_arrivals_total": (),
        "llm_rejected_total": ("reason",),
        "llm_abandoned_total": (),
        "llm_responses_total": ("outcome",),
        "llm_cold_wait_seconds": (),
        "llm_user_ttft_seconds": ("cold",),
    }


def test_every_series_carries_its_model_and_its_replica(metrics: IngressMetrics) -> None:
    for series in SERIES.values():
        assert series.tags == {"model": "tide", "replica": "replica-1"}
        assert series.tag_keys[:2] == ("model", "replica")


def test_histograms_reach_from_a_warm_token_to_the_longest_wait(metrics: IngressMetrics) -> None:
    bounds = {name: series.boundaries for name, series in SERIES.items() if series.boundaries}

    assert bounds == {"llm_cold_wait_seconds": list(COLD_WAIT_S), "llm_user_ttft_seconds": list(TTFT_S)}
    assert list(COLD_WAIT_S) == sorted(set(COLD_WAIT_S))
    assert (COLD_WAIT_S[0], COLD_WAIT_S[-1]) == (1.0, 600.0)


def test_outcome_counters_exist_before_the_first_request(metrics: IngressMetrics) -> None:
    """The increase of a series that begins with its first error does not contain that error."""
    assert {name: series.shown for name, series in SERIES.items() if series.shown} == {
        "llm_arrivals_total": [{}],
        "llm_abandoned_total": [{}],
        "llm_responses_total": [{"outcome": outcome} for outcome in OUTCOMES],
    }
