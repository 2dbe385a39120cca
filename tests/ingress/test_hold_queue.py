from __future__ import annotations

import asyncio

from serve_app.ingress.held_requests import HeldRequest, HoldQueue


async def held(since: float, *, again: bool = False) -> HeldRequest:
    return HeldRequest(since, 10, 2, 0.0, again, asyncio.get_running_loop().create_future())


def leave_all(queue: HoldQueue) -> list[HeldRequest]:
    left = []
    while (first := queue.first()) is not None:
        queue.leave(first)
        left.append(first)
    return left


async def test_an_empty_queue_has_nobody_first() -> None:
    queue = HoldQueue()

    assert (len(queue), queue.first(), queue.all()) == (0, None, [])


async def test_first_come_first_served_but_for_those_who_lost_a_turn_before() -> None:
    queue = HoldQueue()
    one, two = await held(1.0), await held(2.0)
    back, later = await held(3.0, again=True), await held(4.0, again=True)
    for each in (one, back, two, later):
        queue.enter(each)

    assert queue.all() == [back, later, one, two]
    assert leave_all(queue) == [back, later, one, two]
    assert len(queue) == 0


async def test_whoever_leaves_in_between_is_missed_once() -> None:
    queue = HoldQueue()
    one, two, back = await held(1.0), await held(2.0), await held(3.0, again=True)
    for each in (one, two, back):
        queue.enter(each)
    assert len(queue) == 3

    for _ in range(2):
        queue.leave(one)
        queue.leave(back)

    assert (len(queue), queue.first()) == (1, two)
