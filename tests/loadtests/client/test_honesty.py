"""A client that is late says so: what makes a run invalid rather than wrong."""

import asyncio
import time
from collections.abc import Iterator

from loadtests.plan import Planned
from tests.loadtests.client.driving import Driven, Scripted, Stub, driven, planned, target


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


def test_an_overloaded_client_reports_its_lag(stub: Stub) -> None:
    where = target(stub.url, seed=300)
    scripts = {i: {"ttft_s": 0.0, "itl_s": 0.0} for i in range(1000)}
    run: Driven = driven(
        [planned(i, output_tokens=1) for i in range(1000)], where, prompts=Scripted(where, scripts)
    )
    assert run.timekeeping.sent_p99_ms > 20
    assert run.timekeeping.noticed_max_ms > 20
    assert len(run.records) == 1000
    assert {record.outcome for record in run.records.values()} == {"answered"}


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
