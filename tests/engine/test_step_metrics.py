import logging
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.engine import FinishReason
from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats, PrefixCacheStats, SchedulerStats

from serve_app.engine.engine_report import EngineReport
from serve_app.engine.step_metrics import StepStats
from serve_app.wire.signals import EngineSignals
from tests.engine.stub_core import StubCore, scheduled


class Series:
    """A metric that keeps what it is given."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def observe(self, value: float | list[float]) -> None:
        self.values += value if isinstance(value, list) else [value]

    def inc(self, value: float, tags: dict[str, str] | None = None) -> None:
        self.values.append((value, tags) if tags else value)


class Metrics(SimpleNamespace):
    """A replica's metrics, each made on first use."""

    def __getattr__(self, name: str) -> Series:
        series = Series()
        setattr(self, name, series)
        return series


def iteration(**fields: Any) -> IterationStats:
    stats = IterationStats()
    for name, value in fields.items():
        assert hasattr(stats, name), f"vLLM has no {name} any more"
        setattr(stats, name, value)
    return stats


def recorded(**fields: Any) -> dict[str, list[Any]]:
    metrics = Metrics()
    StepStats(metrics).record(None, iteration(**fields))
    return {name: series.values for name, series in vars(metrics).items() if series.values}


def test_times_of_a_step_are_observed_one_by_one() -> None:
    seen = recorded(time_to_first_tokens_iter=[0.1, 0.2], inter_token_latencies_iter=[0.03])

    assert seen == {"ttft": [0.1, 0.2], "inter_token": [0.03]}


def test_tokens_and_preemptions_of_a_step_are_counted() -> None:
    seen = recorded(num_generation_tokens=7, num_preempted_reqs=2)

    assert seen == {"completion_tokens": [7], "preemptions": [2]}


def test_a_finished_request_is_counted_by_its_reason_with_its_whole_latency() -> None:
    finished = FinishedRequestStats(finish_reason=FinishReason.LENGTH, e2e_latency=2.5)

    seen = recorded(finished_requests=[finished])

    assert seen == {"e2e": [2.5], "requests": [(1, {"finish_reason": "length"})]}


def test_a_step_in_which_nothing_happened_writes_nothing() -> None:
    assert recorded() == {}


def test_prefix_cache_lookups_are_counted() -> None:
    metrics = Metrics()
    prefix = PrefixCacheStats(requests=1, queries=64, hits=48)

    StepStats(metrics).record(SchedulerStats(prefix_cache_stats=prefix), None)

    assert metrics.prefix_queries.values == [64]
    assert metrics.prefix_hits.values == [48]


def reporting(metrics: Any) -> tuple[StepStats, EngineReport, StubCore]:
    core = StubCore()
    stats = StepStats(metrics)
    report = EngineReport(core.requests, 1000)
    stats.steps = report.steps
    return stats, report, core


def test_a_step_goes_to_the_report_too() -> None:
    stats, report, core = reporting(Metrics())
    core.add("a", prompt=5)

    stats.record(scheduled(prefill=5), core.step(0.1, "a"))

    signals = report.take(0)
    assert (signals.steps, signals.prompt_tokens_total, signals.ttft_count) == (1, 5, 1)


def test_before_there_is_a_report_steps_are_metrics_only() -> None:
    core = StubCore()
    core.add("warm-up")
    metrics = Metrics()
    stats = StepStats(metrics)
    stats.record(scheduled(prefill=10), core.step(0.1, "warm-up", finished=("warm-up",)))

    report = EngineReport(core.requests, 1000)
    stats.steps = report.steps

    assert metrics.completion_tokens.values == [1]
    assert report.take(0) == EngineSignals(kv_cache_tokens=1000)


def test_what_a_request_reaches_is_observed_then() -> None:
    metrics = Metrics()
    stats, _, core = reporting(metrics)
    core.add("a", queued=1.0)
    core.schedule("a", 1.5)

    stats.record(None, core.step(1.75, "a"))
    assert (metrics.queue_wait.values, metrics.prefill.values) == ([0.5], [0.25])

    for _ in range(98):
        stats.record(None, core.step(2.0, "a"))
    assert metrics.hundred_tokens.values == []

    hundredth = core.step(3.0, "a")
    hundredth.iteration_timestamp = 2.5
    stats.record(None, hundredth)
    stats.record(None, core.step(3.1, "a"))
    assert metrics.hundred_tokens.values == [2.5]
    assert (metrics.queue_wait.values, metrics.prefill.values) == ([0.5], [0.25])


class BrokenMetrics:
    def __getattr__(self, name: str) -> Any:
        raise LookupError(name)


def test_a_failure_does_not_reach_vllm_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    stats, report, core = reporting(BrokenMetrics())
    core.add("a")

    with caplog.at_level(logging.ERROR, "ray.serve"):
        for at in (0.1, 0.2, 0.3):
            stats.record(scheduled(batch=1), core.step(at, "a"))

    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info is not None
    assert report.take(0).itl_count == 2  # what can be taken, is
