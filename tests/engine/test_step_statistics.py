import logging
import random
from collections.abc import Iterable
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from vllm.v1.engine import FinishReason
from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats, PrefixCacheStats, SchedulerStats

from serve_app.engine.sequence_lanes import SequenceLanes
from serve_app.engine.step_statistics import EngineReport, StepStats, step_seconds
from serve_app.settings.caller import LANES, Caller, Lane
from serve_app.telemetry.replica_metrics import EngineGauges, LaneLoad
from serve_app.wire.signals import ENGINE_FIELDS, EngineSignals
from tests.engine.stub_core import StubCore, scheduled

KV_CACHE_TOKENS = 4000


class Reporting:
    """A core and its report, on a clock that goes where the test sets it."""

    def __init__(self) -> None:
        self.core = StubCore()
        self.now = 1000.0
        self.lanes = SequenceLanes()
        self.report = EngineReport(self.core.requests, KV_CACHE_TOKENS, self.lanes, clock=lambda: self.now)

    def add(self, name: str, lane: Lane, prompt: int = 10) -> None:
        """A request of a lane arrives."""
        self.core.add(name, prompt)
        state = self.core.requests[name]
        state.request_id = name
        self.lanes.begin(Caller(lane=lane), SimpleNamespace(sampling_params=None), state)

    def step(
        self,
        at: float,
        *names: str,
        scheduler: SchedulerStats | None = None,
        lane: Lane = "standard",
        **how: Any,
    ) -> list[Any]:
        """A step with results of one lane. It ends at `at` by the clock of the core and of the front end."""
        self.now = 1000.0 + at
        return self.report.add(scheduler or SchedulerStats(), {lane: self.core.step(at, *names, **how)})

    def take(self) -> EngineSignals:
        return self.report.take(0)


@pytest.fixture
def replica() -> Reporting:
    return Reporting()


def test_report_is_every_signal_as_flat_numbers(replica: Reporting) -> None:
    assert replica.take() == EngineSignals(kv_cache_tokens=KV_CACHE_TOKENS)
    replica.core.add("a")
    replica.step(0.5, "a", scheduler=scheduled(prefill=10))

    report = asdict(replica.report.take(3))

    assert tuple(report) == ENGINE_FIELDS
    assert {type(value) for value in report.values()} == {float}
    assert report["ongoing_requests"] == 3.0


def test_the_queue_is_as_of_now(replica: Reporting) -> None:
    for name, prompt in (("a", 100), ("b", 50), ("c", 8000), ("d", 3)):
        replica.core.add(name, prompt)
    replica.step(1.0, "a", tokens=10)
    replica.step(1.1, "b", tokens=5, scheduler=scheduled(num_running_reqs=2, kv_cache_usage=0.25))

    idle = {lane: LaneLoad() for lane in LANES}
    assert replica.report.gauges() == EngineGauges({**idle, "standard": LaneLoad(2, 2, 165, 8003)}, 0.25)

    replica.core.requests.clear()
    assert replica.report.gauges() == EngineGauges(idle, 0.0)


def test_lanes_are_reported_apart(replica: Reporting) -> None:
    replica.add("chat", "interactive", 100)
    replica.add("new", "interactive", 40)
    replica.add("mail", "standard", 20)
    for name in "abc":
        replica.add(name, "background", 1000)
    full = scheduled(num_running_reqs=4)
    replica.step(1.0, "chat", lane="interactive", scheduler=full)
    replica.step(1.1, "a", "b", lane="background", tokens=5, scheduler=full)

    signals = replica.take()

    assert (signals.running_requests, signals.waiting_requests) == (3, 0)
    assert (signals.running_tokens, signals.waiting_tokens) == (101, 60)
    assert (signals.background_running_requests, signals.background_waiting_requests) == (1, 2)
    assert (signals.background_running_tokens, signals.background_waiting_tokens) == (2010, 1000)


def test_background_is_in_steps_and_in_no_other_figure(replica: Reporting) -> None:
    replica.add("a", "background", 100)
    replica.step(0.5, "a", lane="background", scheduler=scheduled(prefill=100))
    replica.step(0.9, "a", lane="background", finished=("a",), scheduler=scheduled(batch=1))

    signals = replica.take()

    assert (signals.steps, signals.step_prefill_tokens, signals.step_batch) == (2, 50, 0.5)
    assert (signals.ttft_count, signals.itl_count) == (0, 0)
    assert signals.prompt_tokens_total == signals.finished_requests_total == 0
    assert signals.finished_prompt_tokens_total == signals.finished_generation_tokens_total == 0


def test_step_time_ignores_background_that_was_left_out(replica: Reporting) -> None:
    replica.add("a", "background")
    replica.add("chat", "interactive")
    replica.step(1.0, "a", lane="background")
    replica.step(1.1, "chat", lane="interactive")
    replica.take()
    replica.now = 1001.2
    parts = {
        lane: replica.core.step(1.2, name) for lane, name in (("background", "a"), ("interactive", "chat"))
    }
    replica.report.add(scheduled(batch=2), parts)

    signals = replica.take()

    assert signals.step_s == pytest.approx(0.1)
    assert signals.itl_count == 1


def test_totals_count_computed_generated_and_finished_tokens(replica: Reporting) -> None:
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


def test_an_embedding_finishes_with_its_prompt_and_generates_nothing(replica: Reporting) -> None:
    replica.core.add("a", prompt=12)
    replica.step(0.1, "a", tokens=0, finished=("a",), scheduler=scheduled(prefill=12))

    signals = replica.take()

    assert (signals.finished_requests_total, signals.finished_prompt_tokens_total) == (1, 12)
    assert signals.prompt_tokens_total == 12
    assert signals.finished_generation_tokens_total == 0
    assert (signals.ttft_count, signals.itl_count) == (1, 0)


def test_steps_are_reported_as_means_and_then_forgotten(replica: Reporting) -> None:
    replica.core.add("a")
    replica.core.schedule("a", 0.1)
    replica.step(0.5, "a", scheduler=scheduled(prefill=10, kv_cache_usage=0.25))
    replica.step(0.6, "a", scheduler=scheduled(batch=1, kv_cache_usage=0.5))

    signals = replica.take()

    assert signals.steps == 2
    assert signals.step_s == pytest.approx((0.4 + 0.1) / 2)
    assert (signals.step_batch, signals.step_prefill_tokens) == (0.5, 5)
    assert signals.step_kv_tokens == 0.375 * KV_CACHE_TOKENS

    again = replica.take()

    assert (again.steps, again.step_s, again.step_batch, again.step_kv_tokens) == (0, 0, 0, 0)


def test_long_prompt_is_several_steps_with_one_result(replica: Reporting) -> None:
    replica.core.add("a", prompt=6000)
    for at in (0.1, 0.3):
        replica.now = 1000.0 + at
        replica.report.add(scheduled(prefill=2000, elapsed_ms=100.0), {})
    replica.step(0.6, "a", scheduler=scheduled(prefill=2000, elapsed_ms=1.0))

    signals = replica.take()

    assert (signals.steps, signals.step_prefill_tokens) == (3, 2000)
    assert signals.step_s == pytest.approx((0.1 + 0.2 + 0.3) / 3)


def test_no_step_contains_idle_time(replica: Reporting) -> None:
    for name, at in (("a", 1.0), ("b", 500.0)):
        replica.core.add(name)
        replica.core.schedule(name, at)
        replica.step(at + 0.05, name, finished=(name,), scheduler=scheduled(prefill=10))

    signals = replica.take()

    assert (signals.steps, signals.step_s) == (2, pytest.approx(0.05))


def test_steps_without_requests_or_details_are_no_steps(replica: Reporting) -> None:
    replica.report.add(scheduled(batch=1, elapsed_ms=5.0), {})  # for nobody
    replica.core.add("a")
    replica.report.add(scheduled(dummy=True), {})
    replica.report.add(SchedulerStats(), {})
    replica.report.add(None, {"standard": replica.core.step(0.2, "a")})
    replica.report.add(None, {})

    signals = replica.take()

    assert (signals.steps, signals.ttft_count, signals.prompt_tokens_total) == (0, 1, 10)
    assert replica.report.steps == 5


def test_latencies_are_percentiles_of_the_last_half_minute(replica: Reporting) -> None:
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
    assert signals.itl_p99_s == pytest.approx(0.02, rel=0.05)

    replica.now += 40.0
    later = replica.take()

    assert (later.ttft_count, later.itl_count, later.ttft_queue_p95_s, later.itl_p99_s) == (0, 0, 0, 0)


def test_first_token_is_found_once_with_queue_and_prefill(replica: Reporting) -> None:
    """Whatever begins, goes on, is preempted or ends in a step."""
    rng = random.Random(1)
    expected: dict[str, tuple[float, float]] = {}
    names: list[str] = []
    for number in range(300):
        at = 50.0 + number / 10
        if rng.random() < 0.6:
            name = f"r{number}"
            queue_s = rng.random() / 100
            replica.core.add(name, queued=at - queue_s - 0.05)
            replica.core.schedule(name, at - 0.05)
            expected[name] = (queue_s, 0.05)
            names.append(name)
        fresh = names[-1:] if names and replica.core.requests[names[-1]].is_prefilling else []
        chosen = list(dict.fromkeys([*rng.sample(names, k=rng.randint(0, len(names))), *fresh]))
        ending = [name for name in chosen if rng.random() < 0.2]
        found = replica.step(at, *chosen, finished=ending)
        names = [name for name in names if name not in ending]

        assert found == [pytest.approx(expected[name]) for name in fresh]


def test_a_request_that_the_core_refused_has_no_first_token(replica: Reporting) -> None:
    replica.core.add("a", queued=50_000.0)  # never scheduled

    assert replica.step(50_000.1, "a", finished=("a",), tokens=0, reason=FinishReason.ERROR) == []


@pytest.mark.parametrize(
    ("inter_token_s", "since_last_s", "prefill_s", "elapsed_ms", "seconds"),
    [
        ([0.02], 0.5, 0.4, 300.0, 0.02),
        ([0.02, 9.0, 0.02], None, None, 1.0, 0.02),  # one was preempted
        ([], 0.07, 0.4, 1.0, 0.07),
        ([], None, 0.04, 1.0, 0.04),  # after a pause
        ((), None, None, 12.5, 0.0125),
    ],
)
def test_best_available_figure_is_the_step_time(
    inter_token_s: Any, since_last_s: float | None, prefill_s: float | None, elapsed_ms: float, seconds: float
) -> None:
    assert step_seconds(inter_token_s, since_last_s, prefill_s, elapsed_ms) == pytest.approx(seconds)


class Series:
    """A metric that keeps what it is given."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def observe(self, values: Iterable[float], **tags: str) -> None:
        self.values += [(value, tags) if tags else value for value in values]

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


STANDARD = {"lane": "standard"}
PREFIX = PrefixCacheStats(requests=1, queries=64, hits=48)


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({}, {"prefix_queries": [64], "prefix_hits": [48]}),
        (
            {"time_to_first_tokens_iter": [0.1, 0.2], "inter_token_latencies_iter": [0.03]},
            {"ttft": [(0.1, STANDARD), (0.2, STANDARD)], "inter_token": [0.03]},
        ),
        (
            {"num_generation_tokens": 7, "num_preempted_reqs": 2},
            {"completion_tokens": [(7, STANDARD)], "preemptions": [(2, STANDARD)]},
        ),
        (
            {"finished_requests": [FinishedRequestStats(FinishReason.LENGTH, e2e_latency=2.5)]},
            {"e2e": [2.5], "requests": [(1, {"finish_reason": "length"} | STANDARD)]},
        ),
    ],
    ids=["prefix cache", "times", "counts", "finished"],
)
def test_a_step_is_exported_as_metrics(fields: dict[str, Any], seen: dict[str, list[Any]]) -> None:
    metrics = Metrics()
    StepStats(metrics).record(
        None if fields else SchedulerStats(prefix_cache_stats=PREFIX), iteration(**fields)
    )

    assert {name: series.values for name, series in vars(metrics).items() if series.values} == seen


def test_warm_up_is_in_metrics_but_not_in_report(replica: Reporting) -> None:
    metrics, core = Metrics(), replica.core
    stats = StepStats(metrics)
    core.add("warm-up")
    stats.record(scheduled(prefill=10), core.step(0.1, "warm-up", finished=("warm-up",)))
    stats.report = replica.report
    assert (metrics.completion_tokens.values, metrics.queue_wait.values) == ([(1, STANDARD)], [])
    assert replica.take() == EngineSignals(kv_cache_tokens=KV_CACHE_TOKENS)

    core.add("a", queued=1.0)
    core.schedule("a", 1.5)
    for at in (1.75, 2.0):
        stats.record(scheduled(), core.step(at, "a"))

    assert (metrics.queue_wait.values, metrics.prefill.values) == ([0.5], [0.25])
    assert replica.take().ttft_count == 1


def test_a_step_is_metered_with_its_scheduled_tokens(replica: Reporting) -> None:
    stats = StepStats(Metrics())
    stats.meter = meter = MagicMock()
    replica.core.add("a")

    stats.record(scheduled(prefill=10, batch=3), replica.core.step(0.1, "a"))
    stats.record(scheduled(prefill=7), None)
    stats.record(SchedulerStats(), None)  # vLLM before 0.26
    stats.record(scheduled(batch=5, dummy=True), None)

    assert [call.args for call in meter.step.call_args_list] == [
        (10, 3, 3, True),
        (7, 0, 0, False),
        (0, 0, 0, False),
        (0, 0, 0, False),
    ]


def test_a_failure_does_not_reach_vllm_and_is_logged_once(
    replica: Reporting, caplog: pytest.LogCaptureFixture
) -> None:
    stats: Any = StepStats(None)  # type: ignore[arg-type]
    stats.report = replica.report
    replica.core.add("a")

    with caplog.at_level(logging.ERROR, "ray.serve"):
        for at in (0.1, 0.2, 0.3):
            stats.record(scheduled(batch=1), replica.core.step(at, "a"))

    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info is not None
    assert replica.take().itl_count == 2  # the report lacks nothing
