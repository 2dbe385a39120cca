import asyncio
import functools
import gc
import time
from collections.abc import Iterator

import pytest
import uvloop

from loadtests.client.pacer import Pacer, lateness_ms, short_collections, worst
from loadtests.plan import Planned
from loadtests.record import Timekeeping
from tests.loadtests.client.driving import Scripted, Stub, driven, planned, target


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


def busy(for_s: float) -> None:
    until = time.monotonic() + for_s
    while time.monotonic() < until:
        pass


def test_a_stalled_client_reports_its_lag(stub: Stub) -> None:
    where = target(stub.url, seed=200)

    async def hog(*_: object) -> None:
        await asyncio.sleep(0.3)
        busy(0.4)

    plan = [planned(i, i * 0.01) for i in range(60)]
    run = driven(plan, where, prompts=Scripted(where, {}), ahead_s=0.1, beside=hog)
    kept = run.timekeeping
    assert kept.noticed_max_ms > 300
    assert kept.noticed_p99_ms > 100  # Each of the beats that the stall swallowed counts.
    assert kept.sent_max_ms > 300
    assert kept.sent_p99_ms > 100
    late = [record for record in run.records.values() if record.lag_s > 0.1]
    assert len(late) >= 20
    assert all(record.ttft_s is not None and record.ttft_s > record.lag_s for record in late)


def test_a_body_that_is_made_late_is_the_clients_lag(stub: Stub) -> None:
    """In slices, so that the heartbeat sees nothing of it."""
    where = target(stub.url, seed=400)

    class Slow(Scripted):
        def parts(self, planned: Planned) -> Iterator[bytes]:
            for part in super().parts(planned):
                for _ in range(100):
                    busy(0.002)
                    yield b""
                yield part

    run = driven([planned(0, output_tokens=1)], where, prompts=Slow(where, {}), ahead_s=0.0)
    assert run.records[0].lag_s > 0.15
    assert run.timekeeping.sent_max_ms > 150
