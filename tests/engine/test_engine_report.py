from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.metrics.stats import SchedulerStats

from serve_app.engine.engine_report import EngineReport
from serve_app.engine.milestones import Reached
from serve_app.telemetry.engine_metrics import EngineGauges
from serve_app.wire.signals import ENGINE_FIELDS, EngineSignals
from tests.engine.stub_core import StubCore, scheduled

KV_CACHE_TOKENS = 4000


class Reporting:
    """A core and its report, on a clock that goes where the test sets it."""

    def __init__(self, core: StubCore | None = None) -> None:
        self.core = core or StubCore()
        self.now = 1000.0
        self.report = EngineReport(self.core.requests, KV_CACHE_TOKENS, clock=lambda: self.now)

    def step(self, at: float, *names: str, scheduler: SchedulerStats | None = None, **how: Any) -> None:
        """A step that ends at `at` by the core's clock, which the front end's follows."""
        self.now = 1000.0 + at
        self.report.steps.add(scheduler or SchedulerStats(), self.core.step(at, *names, **how))

    def take(self) -> EngineSignals:
        return self.report.take(0)


def test_a_report_is_every_signal_and_nothing_else_in_flat_numbers() -> None:
    replica = Reporting()
    replica.core.add("a")
    replica.step(0.5, "a", scheduler=scheduled(prefill=10))

    report = asdict(replica.report.take(3))

    assert tuple(report) == ENGINE_FIELDS
    assert {type(value) for value in report.values()} == {float}
    assert report["ongoing_requests"] == 3.0


def test_a_replica_that_has_done_nothing_reports_zeros_and_its_size() -> None:
    assert Reporting().take() == EngineSignals(kv_cache_tokens=KV_CACHE_TOKENS)


def test_the_queue_is_as_of_now() -> None:
    replica = Reporting()
    replica.core.add("a", prompt=30)
    replica.core.add("b", prompt=70)
    replica.step(0.5, "a", scheduler=scheduled(num_running_reqs=1, kv_cache_usage=0.5))

    signals = replica.take()

    assert (signals.running_requests, signals.running_tokens) == (1, 31)
    assert (signals.waiting_requests, signals.waiting_tokens) == (1, 70)
    assert signals.kv_cache_usage_ratio == 0.5


def test_totals_count_what_was_computed_generated_and_finished() -> None:
    replica = Reporting()
    replica.core.add("a", prompt=100)
    replica.core.add("b", prompt=40)
    replica.step(0.1, "a", cached=64)
    replica.step(0.2, "a", "b", finished=("a",))
    replica.take()
    replica.step(0.3, "b", finished=("b",))

    signals = replica.take()

    assert signals.prompt_tokens_total == 36 + 40
    assert signals.finished_requests_total == 2
    assert signals.finished_prompt_tokens_total == 140
    assert signals.finished_generation_tokens_total == 4


def test_an_embedding_finishes_with_its_prompt_and_generates_nothing() -> None:
    replica = Reporting()
    replica.core.add("a", prompt=12)
    replica.step(0.1, "a", tokens=0, finished=("a",), scheduler=scheduled(prefill=12))

    signals = replica.take()

    assert (signals.finished_requests_total, signals.finished_prompt_tokens_total) == (1, 12)
    assert signals.prompt_tokens_total == 12
    assert signals.finished_generation_tokens_total == 0
    assert (signals.ttft_count, signals.itl_count) == (1, 0)


def test_steps_are_reported_as_means_and_then_forgotten() -> None:
    replica = Reporting()
    replica.core.add("a")
    replica.core.schedule("a", 0.1)
    replica.step(0.5, "a", scheduler=scheduled(prefill=10, kv_cache_usage=0.25))
    replica.step(0.6, "a", scheduler=scheduled(batch=1, kv_cache_usage=0.5))

    signals = replica.take()

    assert signals.steps == 2
    assert signals.step_s == pytest.approx((0.4 + 0.1) / 2)
    assert signals.step_batch == 0.5
    assert signals.step_prefill_tokens == 5
    assert signals.step_kv_tokens == 0.375 * KV_CACHE_TOKENS

    again = replica.take()

    assert (again.steps, again.step_s, again.step_batch, again.step_kv_tokens) == (0, 0, 0, 0)


def test_a_long_prompt_is_several_steps_of_which_only_the_last_has_a_result() -> None:
    replica = Reporting()
    replica.core.add("a", prompt=6000)
    for at in (0.1, 0.3):
        replica.now = 1000.0 + at
        replica.report.steps.add(scheduled(prefill=2000, elapsed_ms=100.0), None)
    replica.step(0.6, "a", scheduler=scheduled(prefill=2000, elapsed_ms=1.0))

    signals = replica.take()

    assert (signals.steps, signals.step_prefill_tokens) == (3, 2000)
    assert signals.step_s == pytest.approx((0.1 + 0.2 + 0.3) / 3)


def test_the_time_nothing_was_to_be_done_is_in_no_step() -> None:
    replica = Reporting()
    for name, at in (("a", 1.0), ("b", 500.0)):
        replica.core.add(name)
        replica.core.schedule(name, at)
        replica.step(at + 0.05, name, finished=(name,), scheduler=scheduled(prefill=10))

    signals = replica.take()

    assert (signals.steps, signals.step_s) == (2, pytest.approx(0.05))


def test_a_step_for_nobody_does_not_count() -> None:
    replica = Reporting()

    replica.report.steps.add(scheduled(batch=1, elapsed_ms=5.0), None)

    assert replica.take().steps == 0


def test_what_a_step_does_not_say_is_left_out() -> None:
    replica = Reporting()
    replica.core.add("a")
    replica.report.steps.add(scheduled(dummy=True), None)
    replica.report.steps.add(SchedulerStats(), None)
    replica.report.steps.add(None, replica.core.step(0.2, "a"))
    replica.report.steps.add(None, None)

    signals = replica.take()

    assert (signals.steps, signals.ttft_count) == (0, 1)


def test_latencies_are_percentiles_of_the_last_half_minute() -> None:
    replica = Reporting()
    for number in range(100):
        name = f"r{number}"
        replica.core.add(name, queued=1.0)
        replica.core.schedule(name, 1.0 if number < 92 else 1.5)
    names = tuple(replica.core.requests)
    replica.step(2.0, *names)
    replica.step(2.02, *names)

    signals = replica.take()

    assert (signals.ttft_count, signals.itl_count) == (100, 100)
    assert signals.ttft_queue_p90_s == pytest.approx(0.0, abs=1e-3)
    assert signals.ttft_queue_p95_s == pytest.approx(0.5, rel=0.05)
    assert signals.ttft_prefill_p50_s == pytest.approx(1.0, rel=0.05)
    assert signals.ttft_prefill_p99_s == pytest.approx(1.0, rel=0.05)
    assert signals.itl_p50_s == pytest.approx(0.02, rel=0.05)
    assert signals.itl_p99_s == pytest.approx(0.02, rel=0.05)

    replica.now += 40.0
    later = replica.take()

    assert (later.ttft_count, later.itl_count, later.ttft_queue_p95_s, later.itl_p99_s) == (0, 0, 0, 0)


@pytest.mark.parametrize(("size", "tokens"), [(131_072, 131_072.0), (None, 0.0)])
def test_an_engines_report_has_its_requests_and_the_size_of_its_cache(
    size: int | None, tokens: float
) -> None:
    core = StubCore()
    llm = SimpleNamespace(
        output_processor=SimpleNamespace(request_states=core.requests),
        vllm_config=SimpleNamespace(
            cache_config=SimpleNamespace(kv_cache_size_tokens=size), num_speculative_tokens=0
        ),
    )
    report = EngineReport.of(llm)
    core.add("a")

    signals = report.take(0)

    assert (signals.kv_cache_tokens, signals.waiting_requests) == (tokens, 1)


def test_what_requests_reach_is_told_in_the_step_in_which_they_do() -> None:
    replica = Reporting()
    replica.core.add("a", queued=1.0, arrived=100.0)
    replica.core.schedule("a", 1.25)

    first = replica.report.steps.add(SchedulerStats(), replica.core.step(1.5, "a"))
    between = [replica.report.steps.add(SchedulerStats(), replica.core.step(2.0, "a")) for _ in range(98)]
    last = replica.core.step(9.0, "a", finished=("a",))
    last.iteration_timestamp = 100.0 + 2.75

    assert first == ([(0.25, 0.25)], [])
    assert set(map(str, between)) == {str(Reached([], []))}
    assert replica.report.steps.add(SchedulerStats(), last) == ([], [2.75])


def test_an_engine_with_speculative_decoding_is_looked_at_as_often_as_its_steps_may_be_long() -> None:
    core = StubCore()
    llm = SimpleNamespace(
        output_processor=SimpleNamespace(request_states=core.requests),
        vllm_config=SimpleNamespace(
            cache_config=SimpleNamespace(kv_cache_size_tokens=1), num_speculative_tokens=98
        ),
    )
    report = EngineReport.of(llm)
    core.add("a")
    core.schedule("a", 0.1)
    report.steps.add(None, core.step(0.5, "a"))

    assert len(report.steps.add(None, core.step(0.6, "a", tokens=99)).hundred_tokens_s) == 1


def gauges(core: StubCore, **scheduler: Any) -> EngineGauges:
    """The gauges of a report whose last step said `scheduler`."""
    report = EngineReport(core.requests, KV_CACHE_TOKENS)
    report.steps.add(SchedulerStats(**scheduler), None)
    return report.gauges()


def test_what_runs_and_what_waits_is_read_with_its_tokens() -> None:
    core = StubCore()
    for name, prompt in (("a", 100), ("b", 50), ("c", 8000), ("d", 3)):
        core.add(name, prompt)
    core.step(1.0, "a", tokens=10)
    core.step(1.1, "b", tokens=5)

    assert gauges(core, num_running_reqs=2, kv_cache_usage=0.25) == EngineGauges(
        running_requests=2,
        waiting_requests=2,
        running_tokens=165,
        waiting_tokens=8003,
        kv_cache_usage_ratio=0.25,
    )


def test_an_idle_engine_is_empty_whatever_its_last_step_said() -> None:
    assert gauges(StubCore(), num_running_reqs=7, kv_cache_usage=0.9) == EngineGauges(0, 0, 0, 0, 0.0)
