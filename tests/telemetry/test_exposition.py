from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from serve_app.telemetry.exposition import NodeAnswer, cluster_exposition, merge_expositions


def node(replica: str, requests: int, fast: int) -> str:
    """What one node's metrics agent serves: ours in between Ray's and the interpreter's."""
    labels = f'model="tide",replica="{replica}"'
    return f"""\
# HELP python_gc_objects_collected_total Objects collected during gc
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{{generation="0"}} 7.0
# HELP ray_llm_ttft_seconds Time to first token, from the engine's arrival.
# TYPE ray_llm_ttft_seconds histogram
ray_llm_ttft_seconds_bucket{{{labels},le="0.1"}} {fast}.0
ray_llm_ttft_seconds_bucket{{{labels},le="+Inf"}} {requests}.0
ray_llm_ttft_seconds_sum{{{labels}}} 1.5
ray_llm_ttft_seconds_count{{{labels}}} {requests}.0
# HELP ray_serve_num_http_requests_total Requests.
# TYPE ray_serve_num_http_requests_total counter
ray_serve_num_http_requests_total{{route="ray_llm_x"}} 9.0
# HELP ray_llm_requests_total Finished generations, by finish reason.
# TYPE ray_llm_requests_total counter
ray_llm_requests_total{{{labels},finish_reason="stop"}} {requests}.0
# HELP ray_llm_queue_depth Requests waiting in the engine's queue.
# TYPE ray_llm_queue_depth gauge
ray_llm_queue_depth{{{labels}}} 0.0
"""


MERGED = merge_expositions([node("a", 10, 4), node("b", 20, 5)])


def test_the_result_is_a_text_prometheus_parses() -> None:
    families = {family.name: family for family in text_string_to_metric_families(MERGED)}

    assert {name: family.type for name, family in families.items()} == {
        "llm_ttft_seconds": "histogram",
        "llm_requests": "counter",  # the parser's name of llm_requests_total
        "llm_queue_depth": "gauge",
    }
    assert families["llm_queue_depth"].documentation == "Requests waiting in the engine's queue."


def test_the_series_of_every_node_are_there_with_their_values() -> None:
    values = {
        (sample.labels["replica"], sample.name): sample.value
        for family in text_string_to_metric_families(MERGED)
        for sample in family.samples
        if "le" not in sample.labels
    }

    assert values == {
        ("a", "llm_ttft_seconds_sum"): 1.5,
        ("a", "llm_ttft_seconds_count"): 10.0,
        ("a", "llm_requests_total"): 10.0,
        ("a", "llm_queue_depth"): 0.0,
        ("b", "llm_ttft_seconds_sum"): 1.5,
        ("b", "llm_ttft_seconds_count"): 20.0,
        ("b", "llm_requests_total"): 20.0,
        ("b", "llm_queue_depth"): 0.0,
    }


def test_each_family_is_described_once_and_its_samples_stand_together() -> None:
    lines = MERGED.splitlines()

    types = [line.split(" ")[2] for line in lines if line.startswith("# TYPE")]
    assert types == ["llm_queue_depth", "llm_requests_total", "llm_ttft_seconds"]
    assert [line.split(" ")[2] for line in lines if line.startswith("# HELP")] == types
    family_of = [
        next(name for name in types if line.startswith(name)) for line in lines if not line.startswith("#")
    ]
    assert family_of == sorted(family_of)


def test_a_histograms_parts_follow_its_description() -> None:
    lines = MERGED.splitlines()
    at = lines.index("# TYPE llm_ttft_seconds histogram")

    assert [line.split("{")[0] for line in lines[at + 1 :]] == 2 * [
        "llm_ttft_seconds_bucket",
        "llm_ttft_seconds_bucket",
        "llm_ttft_seconds_sum",
        "llm_ttft_seconds_count",
    ]


def test_nothing_foreign_and_no_prefix_is_left() -> None:
    assert "ray_" not in MERGED
    assert "python_" not in MERGED
    assert "serve_" not in MERGED


def test_a_label_that_looks_like_a_metric_keeps_its_value() -> None:
    text = 'ray_llm_queue_depth{model="ray_llm_x y"} 1.0\n'

    assert merge_expositions([text]).splitlines()[-1] == 'llm_queue_depth{model="ray_llm_x y"} 1.0'


def test_a_counter_that_merely_ends_like_a_histograms_part_is_a_family_of_its_own() -> None:
    text = "# TYPE ray_llm_token_count counter\nray_llm_token_count 3.0\n"

    assert "# TYPE llm_token_count counter\nllm_token_count 3.0" in merge_expositions([text])


def test_a_family_without_a_description_is_untyped() -> None:
    assert (
        merge_expositions(["ray_llm_new 1.0\n"]) == "# HELP llm_new \n# TYPE llm_new untyped\nllm_new 1.0\n"
    )


def test_a_family_without_samples_is_not_described() -> None:
    assert merge_expositions(["# HELP ray_llm_new New.\n# TYPE ray_llm_new gauge\n"]) == "\n"


def test_a_node_that_did_not_answer_is_told_with_since_when_and_takes_nothing_from_the_others() -> None:
    answers = [
        NodeAnswer("http://10.0.0.7:8080/metrics", node("a", 10, 4), 0.0),
        NodeAnswer("http://10.0.0.8:8080/metrics", None, 12.34, "connection refused"),
        NodeAnswer("http://10.0.0.9:8080/metrics", None, None, "no answer within 0.6 s"),
        NodeAnswer("http://10.0.0.6:8080/metrics", node("b", 20, 5), 0.0),
    ]

    merged = cluster_exposition(answers, 0.25)

    assert merged.splitlines()[:2] == [
        "# lost node http://10.0.0.8:8080/metrics: connection refused; last answered 12.3 s ago",
        "# lost node http://10.0.0.9:8080/metrics: no answer within 0.6 s; never answered before",
    ]
    families = {family.name: family for family in text_string_to_metric_families(merged)}
    up = {sample.labels["node"]: sample.value for sample in families["llm_metrics_node_up"].samples}
    assert up == {"10.0.0.7:8080": 1, "10.0.0.8:8080": 0, "10.0.0.9:8080": 0, "10.0.0.6:8080": 1}
    assert families["llm_metrics_nodes_age_seconds"].samples[0].value == 0.25
    assert {family for family in families if "llm_metrics" not in family} == {
        "llm_ttft_seconds", "llm_requests", "llm_queue_depth",
    }  # fmt: skip


def test_where_the_nodes_are_not_known_there_is_no_age_and_no_series() -> None:
    assert list(text_string_to_metric_families(cluster_exposition([], None))) == []


@pytest.mark.parametrize(
    "comment", ["#", "# EOF", "# HELP", "# TYPE", "#HELP ray_llm_x", "# by hand, for a test"]
)
def test_comments_are_no_metrics(comment: str) -> None:
    assert merge_expositions([comment + "\n", node("a", 10, 4), node("b", 20, 5)]) == MERGED
