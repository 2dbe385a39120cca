"""A load test of the chart's application, from zero to two replicas and back: its verdict and its metrics."""

import re

import pytest

from tests.integration.there_and_back import MODEL, NAMESPACE, ThereAndBack
from tests.kubernetes.dashboards_queries import DashboardQuery, Values, queries
from tests.kubernetes.tools import needs_prometheus

pytestmark = pytest.mark.long

ONLY_ON_GPUS = {
    "ray_node_gpus_utilization",
    "ray_node_gpus_available",
    "ray_node_gram_used",
    "ray_node_gram_available",
}
NEVER_HAPPENED = {
    "llm_autoscaling_policy_errors_total",
    "llm_errors_total",
    "llm_preemptions_total",
    "llm_rate_limited_total",
    "llm_rejected_total",
}
"""Counters of what should not, and did not, happen: Ray shows them with their first increment."""
OF_BATCHES = {
    "llm_batches",
    "llm_batches_late",
    "llm_batch_late_seconds",
    "llm_batch_lines",
    "llm_batch_lines_in_flight",
    "llm_batch_lines_total",
}
"""The run has no batch."""
SUBQUERY = ":1m]"
"""It looks once a minute, and of the run there are less than two."""


def test_the_charts_application_streams_completions_from_zero(there_and_back: ThereAndBack) -> None:
    """The load test's server runs the `serveConfigV2` of the laptop values."""
    answered = [r for r in there_and_back.document["requests"] if r["outcome"] == "answered"]
    assert len(answered) > 8
    assert all(len(request["pieces"]) > 1 for request in answered)
    assert any(request.get("cold_wait_s", 0) > 0 for request in answered)


def test_a_cold_burst_is_held_scaled_for_answered_and_judged(there_and_back: ThereAndBack) -> None:
    done, log = there_and_back.done, there_and_back.log
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{log[-4000:]}"
    assert done.stdout.startswith("Passed: ")
    document = there_and_back.document
    outcomes = {request["outcome"] for request in document["requests"] if request["kind"] != "leaves"}
    assert outcomes == {"answered"}
    assert {r["outcome"] for r in document["requests"] if r["kind"] == "leaves"} == {"left"}
    held = [request for request in document["requests"] if request.get("cold_wait_s", 0) > 0.5]
    burst = [
        request for request in document["requests"] if request["at_s"] == 0 and request["kind"] != "leaves"
    ]
    assert len(burst) >= 4
    assert all(request in held for request in burst)
    assert any(phase for request in held for _, phase in request.get("phases", ()))
    [fleet] = document["summary"]["fleets"]
    assert fleet["peak_ready"] == 2
    assert {decision["model"] for decision in document["decisions"]} == {MODEL}
    report = (there_and_back.out / "report.html").read_text()
    assert "<svg" in report or "createElementNS" in report


def test_its_server_was_stopped_in_order(there_and_back: ThereAndBack) -> None:
    assert "stopped; 0 processes had to be killed" in there_and_back.log


@needs_prometheus
def test_prometheus_has_every_series_that_dashboards_ask_for(there_and_back: ThereAndBack) -> None:
    prometheus = there_and_back.prometheus
    assert prometheus is not None
    used = {
        name
        for query in queries()
        for name in re.findall(r"\b(?:ray_)?(?:llm|node|serve)_[a-z0-9_]+", query.expr)
    }
    wanted = used - ONLY_ON_GPUS - NEVER_HAPPENED - OF_BATCHES
    assert len(wanted) > 20
    assert wanted - prometheus.names() == set()


@needs_prometheus
def test_every_query_of_the_dashboards_is_answered_with_something(there_and_back: ThereAndBack) -> None:
    prometheus = there_and_back.prometheus
    assert prometheus is not None
    document = there_and_back.document
    # Two scrapes: what set a target may be exported in the one after the change of it.
    values = Values(model=MODEL, namespace=NAMESPACE, interval_s=2, rate_interval_s=15, range_s=120)
    began = document["began"]
    # A little later: metrics reach Prometheus after two seconds or three.
    last = began + max(request["ended_s"] for request in document["requests"]) + 4

    def found(query: DashboardQuery) -> bool:
        if query.over_range:
            return bool(prometheus.query(query.expr, time=last))
        # Until the fleet is at zero again: a steady target may change only once before the load ends.
        return bool(prometheus.query_range(query.expr, began, last + 30, 1))

    absent = {*ONLY_ON_GPUS, *NEVER_HAPPENED, *OF_BATCHES, SUBQUERY}
    if all(request.get("cold_wait_s", 1) > 0.5 for request in document["requests"]):
        absent.add('cold="false"')  # on a slow machine the load is over before the replicas are up
    wanted = [query for query in queries(values) if not any(word in query.expr for word in absent)]
    assert len(wanted) > 80
    assert [str(query) for query in wanted if not found(query)] == []


@needs_prometheus
def test_every_rule_evaluates(there_and_back: ThereAndBack) -> None:
    assert there_and_back.prometheus is not None
    assert there_and_back.prometheus.rule_errors() == {}
    assert there_and_back.prometheus.query('last_over_time({__name__=~"model:.*"}[5m])')
