from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from loadtests.client.bodies import Bodies
from loadtests.client.prompts import Prompts, body
from loadtests.planned import Planned
from tests.loadtests.client.driving import planned, target

HERE = target("http://localhost")


class Counted(Prompts):
    def __init__(self) -> None:
        super().__init__(HERE)
        self.made: list[int] = []

    def parts(self, planned: Planned) -> Iterator[bytes]:
        self.made.append(planned.index)
        return super().parts(planned)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_is_due_within_seconds_is_made_and_no_more() -> None:
    prompts = Counted()
    plan = [planned(0), planned(1, 4.0), planned(2, 3600.0)]
    bodies = Bodies(prompts, plan, time.monotonic())
    making = asyncio.create_task(bodies.keep_ahead())
    await turns(50)
    assert prompts.made == [0, 1]
    assert await bodies.take(plan[1]) == body(plan[1], HERE)
    assert prompts.made == [0, 1]
    making.cancel()


async def test_what_was_not_made_in_time_is_made_at_once_and_not_again() -> None:
    prompts = Counted()
    plan = [planned(0), planned(1)]
    bodies = Bodies(prompts, plan, time.monotonic())
    assert await bodies.take(plan[0]) == body(plan[0], HERE)
    await bodies.keep_ahead()
    assert prompts.made == [0, 1]
    assert await bodies.take(plan[1]) == body(plan[1], HERE)


async def test_a_body_taken_while_it_is_made_is_not_kept() -> None:
    prompts = Counted()
    plan = [planned(0, prompt_tokens=50_000)]
    bodies = Bodies(prompts, plan, time.monotonic())
    making = asyncio.create_task(bodies.keep_ahead())
    await turns(3)
    assert await bodies.take(plan[0]) == body(plan[0], HERE)
    await making
    assert prompts.made == [0, 0]


async def test_bodies_that_wait_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtests.client.bodies.HELD_BYTES", 300)
    prompts = Counted()
    plan = [planned(index, 0.001 * index) for index in range(10)]  # 230 bytes each.
    bodies = Bodies(prompts, plan, time.monotonic())
    making = asyncio.create_task(bodies.keep_ahead())
    await turns(100)
    assert prompts.made == [0, 1]
    for one in plan:
        await bodies.take(one)
        await turns(20)
    assert prompts.made == list(range(10))
    await making
