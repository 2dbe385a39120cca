"""What the chart installs, as far as it runs without Kubernetes: its application, its metrics, its test."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.cluster import Running
from tests.kubernetes.chart import LAPTOP, of_kind, ray_service, serve_config
from tests.kubernetes.dashboards_queries import DashboardQuery, Values, queries
from tests.kubernetes.prometheus_server import PrometheusServer
from tests.kubernetes.tools import needs_prometheus

MODEL = "tideserve-tiny"
NAMESPACE = "llm"
MONITORED = ("monitoring.podMonitor.enabled=true", "monitoring.prometheusRule.enabled=true")
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
    "llm_rejected_total",
}
"""Counters of what should not, and did not, happen: Ray shows them with their first increment."""


@pytest.fixture(scope="module")
def laptop() -> Iterator[Running]:
    """The `serveConfigV2` of the laptop values on one node with the resources of every worker group."""
    groups = ray_service(LAPTOP)["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    slots = {
        name: int(amount)
        for group in groups
        for name, amount in group["resources"].items()
        if name.endswith(":replicas")
    }
    environment = {"RAY_OVERRIDE_RESOURCES": json.dumps(slots)}
    running = Running(serve_config(LAPTOP), environment=environment)
    running.start()
    try:
        running.wait_ready()
        yield running
    finally:
        running.end()


def ask(laptop: Running, prompt: str, tokens: int) -> subprocess.CompletedProcess[str]:
    """What `helm test` runs in a pod."""
    command = [sys.executable, "-m", "serve_app.cli.main", "ask", "--url", laptop.url, "--timeout", "120"]
    command += ["--max-tokens", str(tokens), prompt]
    env = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"}
    return subprocess.run(command, check=False, capture_output=True, text=True, env=env, timeout=150)


def complete(laptop: Running, times: int) -> None:
    """Completions all alike, so that the prefix cache is hit, and long enough for a hundredth token."""
    wanted = {"prompt": "Tell me about the sea. " * 40, "max_tokens": 120, "ignore_eos": True}
    with httpx.Client(base_url=laptop.url, timeout=60) as http:
        for _ in range(times):
            http.post("/v1/completions", json={"model": MODEL, **wanted}).raise_for_status()


@dataclass(frozen=True, slots=True)
class Run:
    """A Prometheus over a cold start and some requests."""

    prometheus: PrometheusServer | None
    first: subprocess.CompletedProcess[str]
    started: float


@pytest.fixture(scope="module")
def run(laptop: Running, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    started = time.time()
    prometheus = _prometheus(laptop, tmp_path_factory.mktemp("prometheus"))
    try:
        first = ask(laptop, "Tell me about the sea.", 120)
        complete(laptop, 2)
        yield Run(prometheus, first, started)
    finally:
        if prometheus is not None:
            prometheus.stop()


def _prometheus(laptop: Running, folder: Path) -> PrometheusServer | None:
    if needs_prometheus.args[0]:
        return None
    [monitor] = of_kind("PodMonitor", LAPTOP, *MONITORED)
    [rules] = of_kind("PrometheusRule", LAPTOP, *MONITORED)
    targets = next(laptop.folder.rglob("prom_metrics_service_discovery.json"))
    return PrometheusServer.start(folder, targets, monitor, rules, NAMESPACE)


def test_the_charts_application_streams_a_completion_from_zero(run: Run) -> None:
    assert run.first.returncode == 0, run.first.stderr
    assert len(run.first.stdout.split()) > 10
    assert re.search(r"cold|starting", run.first.stderr, re.IGNORECASE)


@needs_prometheus
def test_prometheus_has_every_series_that_dashboards_and_rules_ask_for(run: Run) -> None:
    prometheus = run.prometheus
    assert prometheus is not None
    used = {
        name
        for query in queries()
        for name in re.findall(r"\b(?:ray_)?(?:llm|node|serve)_[a-z0-9_]+", query.expr)
    }
    wanted = used - ONLY_ON_GPUS - NEVER_HAPPENED
    assert len(wanted) > 20
    prometheus.wait_until(lambda: wanted <= prometheus.names(), lambda: f"has {wanted - prometheus.names()}")


@needs_prometheus
def test_every_query_of_the_dashboards_is_answered_with_something(laptop: Running, run: Run) -> None:
    prometheus = run.prometheus
    assert prometheus is not None
    values = Values(model=MODEL, namespace=NAMESPACE, interval_s=1, rate_interval_s=15, range_s=120)

    def empty() -> list[str]:
        """Queries that find nothing; a rate needs something to happen between two scrapes."""
        complete(laptop, 3)
        now = time.time()
        return [str(query) for query in queries(values) if _wanted(query.expr) and not found(query, now)]

    def found(query: DashboardQuery, now: float) -> list[dict[str, Any]]:
        if query.over_range:
            return prometheus.query(query.expr, time=now)
        return prometheus.query_range(query.expr, run.started, now, 1)

    left = ["all"]

    def answered() -> bool:
        left[:] = empty()
        return not left

    prometheus.wait_until(answered, lambda: f"finds nothing for {left}")


def _wanted(expr: str) -> bool:
    """Whether there is something to find; a subquery looks once a minute, and there is less than one."""
    return ":1m]" not in expr and not any(name in expr for name in ONLY_ON_GPUS | NEVER_HAPPENED)


@needs_prometheus
def test_every_rule_evaluates(run: Run) -> None:
    assert run.prometheus is not None
    assert run.prometheus.rule_errors() == {}
    assert run.prometheus.query('{__name__=~"model:.*"}')


def test_an_upgrade_with_one_knob_changed_restarts_nothing(laptop: Running, run: Run) -> None:
    with httpx.Client(base_url=laptop.url, timeout=30) as http:
        before = _replicas(laptop)
        assert before
        laptop.deploy(serve_config(LAPTOP, "models.tiny.autoscaling.max_replicas=2"))
        deadline = time.monotonic() + 30
        while http.get("/autoscaling/knobs").json()["models"][MODEL]["max_replicas"] != 2:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert _replicas(laptop) == before
        assert ask(laptop, "Tell me about the sea.", 20).returncode == 0


def _replicas(laptop: Running) -> set[int]:
    """The processes of all replicas."""
    return {process.pid for process in laptop.processes("ray::ServeReplica:tideserve:")}
