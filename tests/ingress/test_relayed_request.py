"""Requests relayed to real data planes on loopback, and the load that they put on replicas."""

import asyncio
import gc
import json
import logging
import sys
from contextlib import AsyncExitStack
from typing import Any

import pytest

from serve_app.api.engine_client import EngineReply
from serve_app.api.errors import ApiError
from serve_app.ingress.replica_choice import SEQUENCE_TOKENS
from tests.ingress.fleet import BODY, DEAD, DIED, DONE, FIRST, MODEL, WAITED_S, Fleet, request
from tests.stub_engine import MuteEngine, StubEngine, failing, frames, stalled


async def test_a_whole_reply_comes_with_its_status(fleet: Fleet) -> None:
    engine = StubEngine(EngineReply(200, b'{"ok":1}'))
    await fleet.start(engine)

    assert await fleet.whole() == EngineReply(200, b'{"ok":1}')
    (got,) = engine.requests
    assert (got.operation, got.body, got.request_id) == ("chat_completions", BODY, "r-1")
    assert got.waited_s >= WAITED_S


async def test_a_stream_comes_through_whole(fleet: Fleet) -> None:
    await fleet.start(StubEngine(frames(FIRST, b"data: b\n\n", DONE)))

    assert await fleet.streamed() == FIRST + b"data: b\n\n" + DONE
    assert fleet.in_flight == [0]


async def test_an_answer_that_names_a_loss_is_no_loss(fleet: Fleet) -> None:
    """A client's tool may be called so, and so may its stop string."""
    calls = b'data: {"tool_calls":[{"function":{"name":"engine_died"}}],"stop_reason":"engine_killed"}\n\n'
    await fleet.start(StubEngine(frames(FIRST, calls)))
    assert await fleet.streamed() == FIRST + calls

    unsaid = EngineReply(503, b'{"error":{"param":"engine_dead"}}')
    await fleet.start(StubEngine(unsaid))
    fleet.stop("r1")
    assert await fleet.whole() == unsaid


async def test_engine_refusal_is_forwarded_with_retry_after(fleet: Fleet) -> None:
    error = ApiError(429, "later", headers={"Retry-After": "3", "X-Internal": "1"})
    await fleet.start(StubEngine(error))

    assert await fleet.whole() == EngineReply(429, error.body(), headers={"Retry-After": "3"})


async def test_leaving_a_stream_ends_its_generation(fleet: Fleet) -> None:
    engine = StubEngine(stalled(FIRST))
    await fleet.start(engine)

    async with fleet.client.call(request()) as reply:
        assert reply.stream is not None
        assert await anext(reply.stream) == FIRST

    await engine.left.wait()
    assert engine.cancelled
    assert fleet.in_flight == [0]


async def test_requests_beyond_the_replica_limit_are_refused_at_once(fleet: Fleet) -> None:
    await fleet.start(StubEngine(stalled(FIRST)))

    async with AsyncExitStack() as open_calls:
        for _ in range(MODEL.max_ongoing_requests):
            await open_calls.enter_async_context(fleet.client.call(request()))
        error = await fleet.refusal()

    assert (error.status, error.code) == (429, "queue_full")


async def test_requests_wait_for_the_first_replica(fleet: Fleet) -> None:
    engine = StubEngine(EngineReply(200, b"{}"))
    first = asyncio.create_task(fleet.whole())
    second = asyncio.create_task(fleet.whole())
    await fleet.handle.asked.wait()
    assert len(fleet.held) == 2

    await fleet.start(engine)

    assert [(await task).body for task in (first, second)] == [b"{}", b"{}"]
    assert fleet.handle.chosen == 1
    assert all(0.0 < got.state.queued_s <= got.waited_s - WAITED_S for got in engine.requests)
    assert fleet.in_flight == [0]


async def test_a_request_does_not_wait_if_a_replica_has_room(fleet: Fleet) -> None:
    engine = StubEngine(EngineReply(200, b"{}"))
    await fleet.start(engine)
    asked = request()

    await fleet.whole(asked)

    assert (asked.state.queued_s, engine.requests[0].state.queued_s) == (0.0, 0.0)
    assert fleet.handle.chosen == 0


async def test_request_that_lost_the_only_replica_is_queued(fleet: Fleet) -> None:
    class Dying(StubEngine):
        async def _reply(self) -> EngineReply:
            fleet.lose()
            raise DIED

    await fleet.start(Dying(DIED))
    lost = request()
    asked = asyncio.create_task(fleet.whole(lost))
    await fleet.handle.asked.wait()
    assert len(fleet.held) == 1

    await fleet.start(StubEngine(EngineReply(200, b"second")))

    assert (await asked).body == b"second"
    assert lost.state.queued_s > 0.0


async def test_a_request_that_lost_its_replica_is_not_refused(fleet: Fleet) -> None:
    """It had its slot already."""
    await fleet.start(StubEngine(DEAD))
    await fleet.start(StubEngine(stalled(FIRST)))
    dead, _ = fleet.replicas
    async with AsyncExitStack() as open_calls:
        for _ in range(MODEL.max_ongoing_requests):
            await open_calls.enter_async_context(fleet.client.call(request()))
        dead.failures = 0  # as good as any, as far as anybody knows
        call = fleet.client.call(request())
        asked = asyncio.create_task(call.__aenter__())
        while not len(fleet.held):
            await asyncio.sleep(0)

    assert (await asked).stream is not None
    await call.__aexit__(None, None, None)
    assert fleet.in_flight == [0, 0]


async def test_an_unreachable_replica_is_picked_last(fleet: Fleet) -> None:
    gone = await fleet.start(StubEngine(EngineReply(200, b"first")))
    await fleet.start(StubEngine(EngineReply(200, b"second")))
    await gone.stop()

    assert [(await fleet.whole()).body for _ in range(4)] == [b"second"] * 4
    assert [replica.failures for replica in fleet.replicas] == [1, 0]


async def test_replicas_that_are_all_gone_are_a_503(fleet: Fleet) -> None:
    for _ in range(2):
        gone = await fleet.start(StubEngine(EngineReply(200)))
        await gone.stop()

    error = await fleet.refusal()

    assert (error.status, error.code) == (503, "model_unavailable")
    assert fleet.in_flight == [0, 0]


async def test_stranger_on_a_replicas_port_gets_no_request(fleet: Fleet) -> None:
    stranger = StubEngine(EngineReply(200, b"stranger"))
    await fleet.start(stranger, token="the token of the replica that had this port before")
    await fleet.start(StubEngine(EngineReply(200, b"ours")))

    assert (await fleet.whole()).body == b"ours"
    assert stranger.requests == []


async def test_a_fault_of_our_own_code_is_no_lost_replica(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    engine = StubEngine(RuntimeError("a bug"))
    await fleet.start(engine)

    with caplog.at_level(logging.CRITICAL, "ray.serve"):
        reply = await fleet.whole()

    assert (reply.status, json.loads(reply.body)["error"]["code"]) == (500, "internal_error")
    assert len(engine.requests) == 1
    assert fleet.in_flight == [0]


@pytest.mark.parametrize("size", [1000, 3 << 20], ids=["in one piece", "in several"])
async def test_a_stream_keeps_no_released_body(fleet: Fleet, size: int) -> None:
    """It may last for minutes, and nobody will send the body again."""
    await fleet.start(StubEngine(stalled(FIRST)))
    body = bytes(size)
    before = sys.getrefcount(body)

    asked = request(body=body)
    call = fleet.client.call(asked)
    reply = await call.__aenter__()
    assert reply.stream is not None
    assert await anext(reply.stream) == FIRST
    asked.release_body()  # as `EngineResponse` does
    gc.collect()

    assert sys.getrefcount(body) == before
    await call.__aexit__(None, None, None)


async def test_engines_dead_before_a_request_cost_it_nothing(fleet: Fleet) -> None:
    dead = [StubEngine(DEAD) for _ in range(3)]
    for engine in dead:
        await fleet.start(engine)
    await fleet.start(StubEngine(EngineReply(200, b"alive")))

    assert [(await fleet.whole()).body for _ in range(4)] == [b"alive"] * 4
    assert [len(engine.requests) for engine in dead] == [1, 1, 1]  # the first request found out for all


async def test_an_engine_that_dies_with_a_request_is_replaced_once(fleet: Fleet) -> None:
    await fleet.start(StubEngine(DIED))
    await fleet.start(StubEngine(EngineReply(200, b"alive")))

    assert (await fleet.whole()).body == b"alive"


async def test_an_ordinary_503_of_an_engine_is_its_answer(fleet: Fleet) -> None:
    error = ApiError(503, "no", code="engine_error")
    engine = StubEngine(error)
    await fleet.start(engine)

    assert (await fleet.whole()).body == error.body()
    assert len(engine.requests) == 1


@pytest.mark.parametrize("answer", [frames(), failing(OSError("killed"))], ids=["nothing", "lost"])
async def test_stream_lost_before_its_first_frame_restarts_elsewhere(fleet: Fleet, answer: Any) -> None:
    await fleet.start(StubEngine(answer))
    await fleet.start(StubEngine(frames(FIRST, DONE)))

    assert await fleet.streamed() == FIRST + DONE


async def test_stream_lost_after_its_first_frame_ends_in_an_error(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """One that another engine could not go on with: its engine notes no delivered tokens."""
    engine = StubEngine(failing(OSError("replica killed"), FIRST))
    await fleet.start(engine)

    with caplog.at_level(logging.CRITICAL, "ray.serve"):
        first, event, done, rest = (await fleet.streamed()).split(b"\n\n")

    assert first + b"\n\n" == FIRST
    assert json.loads(event.removeprefix(b"event: error\ndata: "))["error"]["code"] == "replica_lost"
    assert (done, rest) == (b"data: [DONE]", b"")
    assert len(engine.requests) == 1
    assert fleet.in_flight == [0]


async def test_unanswered_request_leaves_a_hanging_replica(fleet: Fleet) -> None:
    mute, well = MuteEngine(), StubEngine(EngineReply(200, b"{}"))
    await fleet.start(mute)
    asking = asyncio.create_task(fleet.whole())
    await mute.entered.wait()
    await fleet.start(well)

    fleet.known.keep_away(fleet.replicas[0], "it has sent no heartbeat for 3 s")

    assert (await asking).body == b"{}"
    await mute.left.wait()
    assert mute.cancelled


async def test_without_another_replica_it_stays_where_it_is(fleet: Fleet) -> None:
    mute = MuteEngine()
    await fleet.start(mute)
    asking = asyncio.create_task(fleet.whole())
    await mute.entered.wait()

    fleet.known.keep_away(fleet.replicas[0], "it has sent no heartbeat for 3 s")
    done, _ = await asyncio.wait([asking], timeout=0)

    assert not done
    assert not mute.left.is_set()
    asking.cancel()


@pytest.mark.parametrize("next_one", ["new", "well again"])
async def test_requests_of_a_hanging_replica_go_to_a_usable_one(fleet: Fleet, next_one: str) -> None:
    mute, well = MuteEngine(), StubEngine(EngineReply(200, b"{}"))
    await fleet.start(mute)
    if next_one == "well again":
        await fleet.start(well)
        fleet.known.keep_away(fleet.replicas[1], "it has sent no heartbeat for 2 s")
    asking = asyncio.create_task(fleet.whole())
    await mute.entered.wait()
    fleet.known.keep_away(fleet.replicas[0], "it has sent no heartbeat for 2 s")

    if next_one == "new":
        await fleet.start(well)
    else:
        fleet.known.welcome(fleet.replicas[1])

    assert (await asking).body == b"{}"
    await mute.left.wait()


# The load on replicas.

LONG = b"x" * 4000
LONG_TOKENS = 1000


async def test_a_stream_counts_its_prompt_until_its_first_event(
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


async def test_client_that_leaves_early_removes_its_prompt_from_the_load(fleet: Fleet) -> None:
    engine = MuteEngine()
    await fleet.start(engine)
    asked = asyncio.create_task(fleet.whole(request(body=LONG)))
    await engine.entered.wait()

    asked.cancel()
    await asyncio.wait((asked,))

    assert (fleet.loads, fleet.in_flight) == ([0], [0])


@pytest.mark.parametrize("answer", [DEAD, DIED, frames()], ids=["dead", "died", "nothing"])
async def test_a_prompt_moves_with_its_request_to_the_next_replica(fleet: Fleet, answer: Any) -> None:
    await fleet.start(StubEngine(answer))
    second = StubEngine(stalled(FIRST))
    await fleet.start(second)

    async with fleet.client.call(request(body=LONG)):
        assert fleet.loads == [0, SEQUENCE_TOKENS]

    assert len(second.requests) == 1
    assert (fleet.loads, fleet.in_flight) == ([0, 0], [0, 0])


async def test_a_replica_lost_within_a_stream_keeps_no_load(fleet: Fleet) -> None:
    await fleet.start(StubEngine(failing(OSError("killed"), FIRST)))

    assert b"replica_lost" in await fleet.streamed()

    assert (fleet.loads, fleet.in_flight) == ([0], [0])


async def test_stranger_without_load_is_not_picked_again(fleet: Fleet) -> None:
    await fleet.start(StubEngine(EngineReply(200, b"stranger")), token="of the replica that was there")
    await fleet.start(StubEngine(stalled(FIRST)))
    async with fleet.client.call(request()), fleet.client.call(request()):
        assert fleet.in_flight == [0, 2]
        async with fleet.client.call(request()):
            assert fleet.in_flight == [0, 3]
