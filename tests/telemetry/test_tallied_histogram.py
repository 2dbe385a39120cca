import pytest
from prometheus_client.parser import text_string_to_metric_families

from serve_app.telemetry import series as made
from serve_app.telemetry.exposition import merge_expositions
from serve_app.telemetry.series import ReplicaSeries, TalliedHistogram
from tests.telemetry.stub_metric import SERIES, StubMetric


@pytest.fixture
def histogram(monkeypatch: pytest.MonkeyPatch) -> TalliedHistogram:
    monkeypatch.setattr(made, "Gauge", StubMetric)
    SERIES.clear()
    return ReplicaSeries("tide", "replica-1").tallied("llm_x_seconds", "X.", (0.1, 1.0))


def published(histogram: TalliedHistogram) -> tuple[dict[str, float], float, float]:
    """What one publication sets: values by the upper bound of their bucket, their sum and their number."""
    for series in SERIES.values():
        series.values.clear()
    histogram.publish()
    ((total, _),) = SERIES["llm_x_seconds_sum"].values
    ((count, _),) = SERIES["llm_x_seconds_count"].values
    return {tags["le"]: value for value, tags in SERIES["llm_x_seconds_bucket"].values}, total, count


def test_bucket_counts_values_up_to_and_at_its_bound(histogram: TalliedHistogram) -> None:
    histogram.observe([0.05, 0.1, 0.5, 2.0])

    assert published(histogram) == ({"0.1": 2, "1.0": 3, "+Inf": 4}, pytest.approx(2.65), 4)


def test_all_buckets_are_there_before_anything_is_counted(histogram: TalliedHistogram) -> None:
    """Or PromQL's `increase` would miss what comes first."""
    assert published(histogram) == ({"0.1": 0, "1.0": 0, "+Inf": 0}, 0, 0)


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
