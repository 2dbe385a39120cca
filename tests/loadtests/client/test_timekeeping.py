import asyncio
import functools
import gc
import time

import pytest
import uvloop

from loadtests.client.pacer import HEARTBEAT_S, Clock, Pacer, lateness_ms, short_collections, worst
from loadtests.record import Timekeeping


@pytest.mark.parametrize(
    ("late_s", "ms"),
    [
        ([], (0.0, 0.0)),
        ([-0.5], (0.0, 0.0)),
        ([0.001, 30.0, 60.0], (60_000.0, 60_000.0)),
        ([0.001] * 99 + [5.0], (1.0, 5000.0)),
        ([0.001] * 98 + [5.0] * 2, (5000.0, 5000.0)),
    ],
)
def test_lateness_is_what_99_percent_did_not_exceed(late_s: list[float], ms: tuple[float, float]) -> None:
    assert lateness_ms(late_s) == pytest.approx(ms)


def test_the_worst_process_counts_for_each_figure() -> None:
    first, second = Timekeeping(1, 5, 3, 4, 0.5), Timekeeping(2, 3, 1, 9, 0.2)
    assert worst([first, second]) == Timekeeping(2, 5, 3, 9, 0.5)


def test_a_stall_counts_every_heartbeat_it_delayed() -> None:
    async def run() -> Timekeeping:
        with Pacer(asyncio.get_running_loop()) as pacer:
            clock = Clock(pacer, time.monotonic())
            await asyncio.sleep(2 * HEARTBEAT_S)
            until = time.monotonic() + 20 * HEARTBEAT_S
            while time.monotonic() < until:
                pass
            await asyncio.sleep(2 * HEARTBEAT_S)
            return clock.result()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        kept = runner.run(run())
    assert kept.noticed_max_ms >= 19 * HEARTBEAT_S * 1e3 - 1
    assert kept.noticed_p99_ms >= 15 * HEARTBEAT_S * 1e3
    assert (kept.sent_p99_ms, kept.sent_max_ms) == (0.0, 0.0)
    assert kept.cpu_share > 0.0


@pytest.mark.parametrize("factory", [uvloop.new_event_loop, asyncio.new_event_loop])
@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_the_pacer_calls_in_order_and_never_early(
    factory: object, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", platform)
    called: list[tuple[int, float]] = []

    def call(number: int) -> None:
        called.append((number, time.monotonic()))

    async def run() -> float:
        with Pacer(asyncio.get_running_loop()) as pacer:
            start = time.monotonic()
            for number in (3, 1, 2):
                pacer.at(start + number * 0.0107, functools.partial(call, number))
            await pacer.until(start + 0.04)
            await pacer.until(start)
            return start

    with asyncio.Runner(loop_factory=factory) as runner:  # type: ignore[arg-type]
        start = runner.run(run())
    assert [number for number, _ in called] == [1, 2, 3]
    assert all(at >= start + number * 0.0107 for number, at in called)


def test_garbage_collections_skip_older_objects() -> None:
    before = gc.get_threshold()
    with short_collections():
        assert gc.get_freeze_count() > 1000
        assert gc.get_threshold()[0] > before[0]
        assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == before
