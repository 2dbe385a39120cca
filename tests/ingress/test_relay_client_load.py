"""What a relayed request adds to its replica's load, and when it is taken away again."""

import asyncio
from typing import Any

import pytest

from serve_app.api.engine_client import EngineReply
from serve_app.api.errors import ApiError
from serve_app.ingress.replica_choice import SEQUENCE_TOKENS
from tests.ingress.relaying import DEAD, DIED, DONE, FIRST, Fleet, request
from tests.stub_engine import MuteEngine, StubEngine, failing, frames, stalled

LONG = b"x" * 4000
LONG_TOKENS = 1000


async def test_a_stream_weighs_its_prompt_until_its_first_event_and_itself_until_its_end(
    fleet: Fleet,
) -> None:
    engine = StubEngine(stalled(FIRST))
    await fleet.start(engine)
    call = fleet.client.call(request(body=LONG))
    opening = asyncio.create_task(call.__aenter__())
    await engine.entered.wait()
    assert fleet.loads == [LONG_TOKENS + SEQUENCE_TOKENS]

    await opening
    assert fleet.loads == [SEQUENCE_TOKENS]
    await call.__aexit__(None, None, None)

    assert fleet.loads == [0]


async def test_a_whole_answer_weighs_its_prompt_until_it_is_there(fleet: Fleet) -> None:
    engine = StubEngine(EngineReply(200, b"{}"))
    await fleet.start(engine)
    asked = asyncio.create_task(fleet.whole(request(body=LONG)))
    await engine.entered.wait()
    assert fleet.loads == [LONG_TOKENS + SEQUENCE_TOKENS]

    await asked

    assert fleet.loads == [0]


async def test_a_client_that_leaves_before_its_first_token_takes_its_prompt_along(fleet: Fleet) -> None:
    engine = MuteEngine()
    await fleet.start(engine)
    asked = asyncio.create_task(fleet.whole(request(body=LONG)))
    await engine.entered.wait()

    asked.cancel()
    await asyncio.wait((asked,))

    assert (fleet.loads, fleet.in_flight) == ([0], [0])


async def test_a_request_held_for_a_replica_weighs_nothing_before_it_has_one(fleet: Fleet) -> None:
    asked = asyncio.create_task(fleet.whole(request(body=LONG)))
    await fleet.handle.asked.wait()
    engine = StubEngine(EngineReply(200, b"{}"))

    await fleet.start(engine)

    assert fleet.loads == [LONG_TOKENS + SEQUENCE_TOKENS]
    await asked
    assert fleet.loads == [0]


@pytest.mark.parametrize("answer", [DEAD, DIED, frames()], ids=["dead", "died", "nothing"])
async def test_a_prompt_moves_with_its_request_to_the_next_replica(fleet: Fleet, answer: Any) -> None:
    await fleet.start(StubEngine(answer))
    second = StubEngine(stalled(FIRST))
    await fleet.start(second)

    async with fleet.client.call(request(body=LONG)):
        assert fleet.loads == [0, SEQUENCE_TOKENS]

    assert len(second.requests) == 1
    assert (fleet.loads, fleet.in_flight) == ([0, 0], [0, 0])


@pytest.mark.parametrize(
    "answer",
    [ApiError(400, "no"), ApiError(503, "no", code="engine_error"), ApiError(429, "later")],
    ids=["400", "503", "429"],
)
async def test_a_refusal_leaves_no_load_behind(fleet: Fleet, answer: ApiError) -> None:
    await fleet.start(StubEngine(answer))

    await fleet.whole(request(body=LONG))

    assert (fleet.loads, fleet.in_flight) == ([0], [0])


async def test_replicas_that_are_all_gone_have_no_load(fleet: Fleet) -> None:
    for _ in range(2):
        gone = await fleet.start(StubEngine(EngineReply(200)))
        await gone.stop()

    await fleet.refusal()

    assert fleet.loads == [0, 0]


async def test_a_replica_lost_within_a_stream_keeps_no_load(fleet: Fleet) -> None:
    await fleet.start(StubEngine(failing(OSError("killed"), FIRST)))

    assert b"replica_lost" in await fleet.streamed()

    assert (fleet.loads, fleet.in_flight) == ([0], [0])


async def test_a_long_prompt_sends_those_after_it_elsewhere(fleet: Fleet) -> None:
    busy, free = MuteEngine(), StubEngine(frames(FIRST, DONE))
    await fleet.start(busy)
    await fleet.start(free)
    asked = asyncio.create_task(fleet.whole(request(body=LONG)))
    await busy.entered.wait()

    for _ in range(5):
        await fleet.streamed()

    assert (len(busy.requests), len(free.requests)) == (1, 5)
    asked.cancel()
    await asyncio.wait((asked,))


async def test_a_stranger_on_a_replica_s_port_is_not_tried_again_for_having_no_load(fleet: Fleet) -> None:
    await fleet.start(StubEngine(EngineReply(200, b"stranger")), token="of the replica that was there")
    await fleet.start(StubEngine(stalled(FIRST)))
    async with fleet.client.call(request()), fleet.client.call(request()):
        assert fleet.in_flight == [0, 2]
        async with fleet.client.call(request()):
            assert fleet.in_flight == [0, 3]
