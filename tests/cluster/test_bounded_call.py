import asyncio
import logging
import threading
from collections.abc import AsyncIterator

import pytest

from serve_app.cluster.bounded_call import Answer, BoundedCall
from tests.stub_engine import LIMIT_S
from tests.timing import Clock


class Source:
    """Answers with the number of the call, when it is let."""

    def __init__(self, clock: Clock) -> None:
        self.calls = 0
        self.answers = threading.Event()
        self.answers.set()
        self.fails: Exception | None = None
        self.threads: set[threading.Thread] = set()
        self.read = BoundedCall("the source", self._call, 0.5, clock)

    def _call(self) -> int:
        self.calls += 1
        number = self.calls
        self.threads.add(threading.current_thread())
        assert self.answers.wait(LIMIT_S)
        if self.fails is not None:
            raise self.fails
        return number


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
async def source(clock: Clock) -> AsyncIterator[Source]:
    made = Source(clock)
    yield made
    made.answers.set()
    for thread in made.threads:
        await asyncio.to_thread(thread.join, LIMIT_S)


async def test_an_answer_is_reused_while_it_is_fresh(source: Source, clock: Clock) -> None:
    assert source.read.age_s() is None
    assert await source.read.get(LIMIT_S) == Answer(1, 100.0)

    clock.now += 0.5
    assert await source.read.get(LIMIT_S) == Answer(1, 100.0)
    assert source.read.age_s() == 0.5

    clock.now += 0.25
    assert await source.read.get(LIMIT_S) == Answer(2, 100.75)


async def test_concurrent_callers_share_one_call_off_the_event_loop(source: Source) -> None:
    answers = await asyncio.gather(*(source.read.get(LIMIT_S) for _ in range(100)))

    assert set(answers) == {Answer(1, 100.0)}
    assert source.calls == 1
    assert threading.current_thread() not in source.threads


async def test_a_hanging_call_is_waited_for_once(source: Source, clock: Clock) -> None:
    await source.read.get(LIMIT_S)
    source.answers.clear()
    clock.now += 10.0

    assert await source.read.get(0.01) == Answer(1, 100.0)
    clock.now += 5.0
    # It has been running for 5 s: nobody waits for it any more, however long they would.
    answer = await asyncio.wait_for(source.read.get(4.9), timeout=LIMIT_S)

    assert answer == Answer(1, 100.0)
    assert source.read.age_s() == 15.0
    assert source.calls == 2


async def test_a_late_answer_has_the_age_of_its_call(source: Source, clock: Clock) -> None:
    source.answers.clear()
    assert await source.read.get(0.01) is None
    clock.now += 30.0

    source.answers.set()
    for thread in source.threads:
        await asyncio.to_thread(thread.join, LIMIT_S)

    assert source.read.last == Answer(1, 100.0)
    assert await source.read.get(LIMIT_S) == Answer(2, 130.0)


async def test_a_caller_can_require_a_call_that_begins_now(source: Source, clock: Clock) -> None:
    source.answers.clear()
    early = asyncio.create_task(source.read.get(LIMIT_S))
    await asyncio.sleep(0)
    clock.now += 0.1
    late = asyncio.create_task(source.read.get(LIMIT_S, since=clock.now))
    await asyncio.sleep(0)
    source.answers.set()

    assert await early == Answer(1, 100.0)
    assert await late == Answer(2, 100.1)


async def test_a_failure_is_logged_once_and_keeps_the_last_answer(
    source: Source, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    await source.read.get(LIMIT_S)
    source.fails = RuntimeError("GCS is gone")
    with caplog.at_level(logging.WARNING, "ray.serve"):
        for _ in range(3):
            clock.now += 1.0
            assert await source.read.get(LIMIT_S) == Answer(1, 100.0)
        source.fails = None
        clock.now += 1.0
        assert await source.read.get(LIMIT_S) == Answer(5, 104.0)

    assert caplog.messages == ["the source: failed: RuntimeError: GCS is gone"]


async def test_a_cancelled_caller_does_not_cancel_the_others(source: Source) -> None:
    source.answers.clear()
    leaving, staying = (asyncio.create_task(source.read.get(LIMIT_S)) for _ in range(2))
    await asyncio.sleep(0)

    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    source.answers.set()

    assert await staying == Answer(1, 100.0)
    assert source.calls == 1
