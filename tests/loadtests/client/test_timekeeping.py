import asyncio
import functools
import gc
import time

import numpy as np
import pytest
import uvloop

from loadtests.client.pacer import BEAT_S, Clock, Lateness, Pacer, short_collections, worst
from loadtests.record import Timekeeping


def test_nothing_is_not_late() -> None:
    assert (Lateness().p99_s(), Lateness().max_s) == (0.0, 0.0)


def test_the_percentile_is_at_most_a_bin_above_the_true_one() -> None:
    values = np.random.default_rng(0).exponential(0.01, 5000)
    late = Lateness()
    for value in values:
        late.add(float(value))
    true = np.sort(values)[-(-99 * 5000 // 100) - 1]
    assert true <= late.p99_s() <= true + 5e-5
    assert late.max_s == values.max()


def test_what_is_later_than_all_bins_counts_as_the_latest() -> None:
    late = Lateness()
    for value in (0.001, 30.0, 60.0):
        late.add(value)
    assert late.p99_s() == late.max_s == 60.0


def test_the_few_latest_do_not_move_the_percentile() -> None:
    late = Lateness()
    for value in [0.001] * 99 + [5.0]:
        late.add(value)
    assert late.p99_s() == pytest.approx(0.001, abs=1e-4)
    late.add(5.0)
    assert late.p99_s() == 5.0


def test_early_is_not_late() -> None:
    late = Lateness()
    late.add(-0.5)
    assert late.p99_s() == late.max_s == 0.0


def test_of_several_processes_the_worst_of_each_figure_counts() -> None:
    first, second = Timekeeping(1, 5, 3, 4, 0.5), Timekeeping(2, 3, 1, 9, 0.2)
    assert worst([first, second]) == Timekeeping(2, 5, 3, 9, 0.5)


def test_every_beat_that_a_stall_swallowed_counts() -> None:
    async def run() -> Timekeeping:
        with Pacer(asyncio.get_running_loop()) as pacer:
            clock = Clock(pacer, time.monotonic())
            await asyncio.sleep(2 * BEAT_S)
            until = time.monotonic() + 20 * BEAT_S
            while time.monotonic() < until:
                pass
            await asyncio.sleep(2 * BEAT_S)
            return clock.result()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        kept = runner.run(run())
    assert kept.noticed_max_ms >= 19 * BEAT_S * 1e3 - 1
    assert kept.noticed_p99_ms >= 15 * BEAT_S * 1e3
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


def test_collections_look_only_at_what_came_since() -> None:
    before = gc.get_threshold()
    with short_collections():
        assert gc.get_freeze_count() > 1000
        assert gc.get_threshold()[0] > before[0]
        assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == before
