from __future__ import annotations

from vllm.v1.metrics.stats import SchedulerStats

from serve_app.engine.queue_reading import QueueReading, read_queue
from serve_app.telemetry.engine_metrics import EngineGauges
from tests.engine.stub_core import StubCore


def waiting(core: StubCore, running: int = 0, now: float = 100.0) -> float:
    return read_queue(core.requests, SchedulerStats(num_running_reqs=running), now).oldest_waiting_s


def test_what_runs_and_what_waits_is_read_with_its_tokens() -> None:
    core = StubCore()
    for name, prompt in (("a", 100), ("b", 50), ("c", 8000), ("d", 3)):
        core.add(name, prompt)
    core.step(1.0, "a", tokens=10)
    core.step(1.1, "b", tokens=5)

    reading = read_queue(core.requests, SchedulerStats(num_running_reqs=2, kv_cache_usage=0.25), 0.0)

    assert reading.gauges == EngineGauges(
        running_requests=2,
        waiting_requests=2,
        running_tokens=165,
        waiting_tokens=8003,
        kv_cache_usage_ratio=0.25,
    )


def test_an_idle_engine_is_empty_whatever_its_last_step_said() -> None:
    scheduler = SchedulerStats(num_running_reqs=7, kv_cache_usage=0.9)

    assert read_queue({}, scheduler, 100.0) == QueueReading(EngineGauges(0, 0, 0, 0, 0.0), 0.0)


def test_the_oldest_that_waits_is_the_first_the_engine_has_not_begun() -> None:
    core = StubCore()
    for name, arrived in (("a", 90.0), ("c", 97.0), ("b", 94.0)):
        core.add(name, arrived=arrived)

    assert waiting(core, running=0) == 10.0
    assert waiting(core, running=1) == 6.0
    assert waiting(core, running=2) == 3.0
    assert waiting(core, running=3) == 0.0


def test_those_that_generate_do_not_wait() -> None:
    core = StubCore()
    core.add("a", arrived=10.0)
    core.add("b", arrived=95.0)
    core.step(1.0, "a")

    assert waiting(core, running=1) == 5.0


def test_a_preempted_request_does_not_hide_that_others_wait() -> None:
    core = StubCore()
    for name in ("a", "b", "c"):
        core.add(name, arrived=98.0)
    core.step(1.0, "a", "b")

    assert waiting(core, running=1) == 2.0


def test_a_clock_that_was_set_back_makes_no_age_below_zero() -> None:
    core = StubCore()
    core.add("a", arrived=100.5)

    assert waiting(core) == 0.0
