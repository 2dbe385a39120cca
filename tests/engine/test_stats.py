from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from vllm.v1.engine import FinishReason
from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats, PrefixCacheStats, SchedulerStats

from serve_app.engine.stats import StepStats, read_gauges
from serve_app.telemetry.engine_metrics import EngineGauges


class Series:
    """A metric that keeps what it is given."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def observe(self, value: float) -> None:
        self.values.append(value)

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
    return {name: series.values for name, series in vars(metrics).items()}


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


def test_prefix_cache_lookups_are_counted_and_the_schedulers_view_is_kept() -> None:
    metrics = Metrics()
    stats = StepStats(metrics)
    scheduler = SchedulerStats(
        num_running_reqs=3, prefix_cache_stats=PrefixCacheStats(requests=1, queries=64, hits=48)
    )

    stats.record(scheduler, None)

    assert metrics.prefix_queries.values == [64]
    assert metrics.prefix_hits.values == [48]
    assert stats.scheduler is scheduler


def test_a_step_without_the_schedulers_view_keeps_the_last_one() -> None:
    stats = StepStats(Metrics())
    scheduler = SchedulerStats(num_running_reqs=3)
    stats.record(scheduler, None)

    stats.record(None, IterationStats())

    assert stats.scheduler is scheduler


def test_vllm_gets_the_one_logger_there_is_for_every_engine_it_asks_for() -> None:
    stats = StepStats(Metrics())

    assert stats.factory(None, 0) is stats


def state(prompt: int, generated: int = 0, prefilling: bool = False) -> Any:
    return SimpleNamespace(
        prompt_len=prompt,
        is_prefilling=prefilling,
        stats=SimpleNamespace(num_generation_tokens=generated),
    )


def gauges(scheduler: SchedulerStats, *states: Any) -> EngineGauges:
    held = {str(number): each for number, each in enumerate(states)}
    engine = SimpleNamespace(output_processor=SimpleNamespace(request_states=held))
    return read_gauges(engine, scheduler)


def test_what_runs_and_what_waits_is_read_with_its_tokens() -> None:
    scheduler = SchedulerStats(num_running_reqs=2, kv_cache_usage=0.25)

    assert gauges(
        scheduler, state(100, 10), state(50, 5), state(8000, prefilling=True), state(3, prefilling=True)
    ) == EngineGauges(
        running_requests=2,
        waiting_requests=2,
        running_tokens=165,
        waiting_tokens=8003,
        kv_cache_usage_ratio=0.25,
    )


def test_an_idle_engine_is_empty_whatever_its_last_step_said() -> None:
    scheduler = SchedulerStats(num_running_reqs=7, kv_cache_usage=0.9)

    assert gauges(scheduler) == EngineGauges(0, 0, 0, 0, 0.0)
