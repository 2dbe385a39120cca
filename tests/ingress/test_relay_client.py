"""`RelayClient` against real data planes on loopback; only Ray's handle and the engines are stubs."""

import asyncio
import gc
import json
import logging
import sys
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import web

from serve_app.api.engine_client import EngineReply
from serve_app.api.errors import ApiError
from tests.ingress.relaying import BODY, DEAD, DIED, DONE, FIRST, MODEL, WAITED_S, Fleet, request, serving
from tests.stub_engine import MuteEngine, StubEngine, failing, frames, stalled


async def test_a_whole_reply_comes_with_its_status(fleet: Fleet) -> None:
    engine = StubEngine(EngineReply(200, b'{"ok":1}'))
    await fleet.start(engine)

    assert await fleet.whole() == EngineReply(200, b'{"ok":1}')
    (got,) = engine.requests
    assert (got.operation, got.body, got.request_id) == ("chat_completions", BODY, "r-1")


async def test_the_wait_so_far_travels_along(fleet: Fleet) -> None:
    engine = StubEngine(EngineReply(200))
    await fleet.start(engine)

    await fleet.whole()

    assert engine.requests[0].waited_s >= WAITED_S


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


async def test_what_the_prompt_found_in_the_cache_is_noted(fleet: Fleet) -> None:
    await fleet.start(StubEngine(EngineReply(200, b"{}"), cached_tokens=16))
    asked = request()

    await fleet.whole(asked)

    assert asked.state.cached_tokens == 16


async def test_an_engines_refusal_is_passed_on_with_when_to_come_back(fleet: Fleet) -> None:
    error = ApiError(429, "later", headers={"Retry-After": "3", "X-Internal": "1"})
    await fleet.start(StubEngine(error))

    assert await fleet.whole() == EngineReply(429, error.body(), headers={"Retry-After": "3"})


async def test_requests_spread_over_the_replicas(fleet: Fleet) -> None:
    engines = [StubEngine(stalled(FIRST)) for _ in range(3)]
    for engine in engines:
        await fleet.start(engine)

    async with AsyncExitStack() as open_calls:
        for _ in range(6):
            await open_calls.enter_async_context(fleet.client.call(request()))
        assert [len(engine.requests) for engine in engines] == [2, 2, 2]
        assert fleet.in_flight == [2, 2, 2]
    assert fleet.in_flight == [0, 0, 0]


async def test_leaving_a_stream_ends_its_generation(fleet: Fleet) -> None:
    engine = StubEngine(stalled(FIRST))
    await fleet.start(engine)

    async with fleet.client.call(request()) as reply:
        assert reply.stream is not None
        assert await anext(reply.stream) == FIRST

    await engine.left.wait()
    assert engine.cancelled
    assert fleet.in_flight == [0]


async def test_more_requests_than_a_replica_may_hold_are_refused_at_once(fleet: Fleet) -> None:
    await fleet.start(StubEngine(stalled(FIRST)))

    async with AsyncExitStack() as open_calls:
        for _ in range(MODEL.max_ongoing_requests):
            await open_calls.enter_async_context(fleet.client.call(request()))
        error = await fleet.refusal()

    assert (error.status, error.code) == (429, "queue_full")


async def test_without_a_replica_requests_are_held_until_there_is_one(fleet: Fleet) -> None:
    engine = StubEngine(EngineReply(200, b"{}"))
    first = asyncio.create_task(fleet.whole())
    second = asyncio.create_task(fleet.whole())
    await fleet.handle.asked.wait()
    assert len(fleet.held) == 2

    await fleet.start(engine)

    assert [(await task).body for task in (first, second)] == [b"{}", b"{}"]
    assert fleet.handle.chosen == 1
    assert [got.waited_s > WAITED_S and got.state.queued_s > 0.0 for got in engine.requests] == [True, True]
    assert fleet.in_flight == [0]


async def test_a_replica_is_told_for_how_long_its_request_was_held(fleet: Fleet) -> None:
    engine = StubEngine(EngineReply(200, b"{}"))
    asked = request()
    asking = asyncio.create_task(fleet.whole(asked))
    await fleet.handle.asked.wait()

    await fleet.start(engine)
    await asking

    (got,) = engine.requests
    assert got.state.queued_s == pytest.approx(asked.state.queued_s, abs=1e-6)
    assert 0.0 < got.state.queued_s <= got.waited_s - WAITED_S


async def test_with_a_replica_a_request_is_not_held_for_a_moment(fleet: Fleet) -> None:
    engine = StubEngine(EngineReply(200, b"{}"))
    await fleet.start(engine)
    asked = request()

    await fleet.whole(asked)

    assert (asked.state.queued_s, engine.requests[0].state.queued_s) == (0.0, 0.0)
    assert fleet.handle.chosen == 0


async def test_a_request_whose_only_replica_was_lost_is_held_for_the_next_one(fleet: Fleet) -> None:
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


async def test_a_request_that_lost_its_replica_is_not_refused_for_want_of_room(fleet: Fleet) -> None:
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


async def test_a_client_that_leaves_while_it_is_held_frees_its_place(fleet: Fleet) -> None:
    asked = asyncio.create_task(fleet.whole())
    await fleet.handle.asked.wait()

    asked.cancel()
    await asyncio.wait((asked,))

    assert len(fleet.held) == 0


async def test_a_replica_that_is_gone_is_picked_last_and_another_takes_the_request(fleet: Fleet) -> None:
    gone = await fleet.start(StubEngine(EngineReply(200, b"first")))
    await fleet.start(StubEngine(EngineReply(200, b"second")))
    await gone.stop()

    assert [(await fleet.whole()).body for _ in range(4)] == [b"second"] * 4
    assert [replica.failures for replica in fleet.replicas] == [1, 0]


async def test_a_replica_that_can_be_reached_again_is_one_of_equals_again(fleet: Fleet) -> None:
    await fleet.start(StubEngine(EngineReply(200, b"{}")))
    (replica,) = fleet.replicas
    replica.failures = 2

    await fleet.whole()

    assert replica.failures == 0


async def test_replicas_that_are_all_gone_are_a_503(fleet: Fleet) -> None:
    for _ in range(2):
        gone = await fleet.start(StubEngine(EngineReply(200)))
        await gone.stop()

    error = await fleet.refusal()

    assert (error.status, error.code) == (503, "model_unavailable")
    assert fleet.in_flight == [0, 0]


async def test_a_stranger_on_a_replicas_port_is_not_taken_for_it(fleet: Fleet) -> None:
    stranger = StubEngine(EngineReply(200, b"stranger"))
    await fleet.start(stranger, token="the token of the replica that had this port before")
    await fleet.start(StubEngine(EngineReply(200, b"ours")))

    assert (await fleet.whole()).body == b"ours"
    assert stranger.requests == []


async def test_strangers_only_is_a_503_and_no_403(fleet: Fleet) -> None:
    await fleet.start(StubEngine(EngineReply(200)), token="wrong")

    error = await fleet.refusal()

    assert (error.status, error.code, error.headers) == (503, "model_unavailable", {"Retry-After": "5"})


async def test_a_stranger_that_speaks_http_is_not_taken_for_a_replica(fleet: Fleet) -> None:
    async with serving(web.Response(status=200, text="<html>", content_type="text/html")) as address:
        fleet.name("stranger", address)
        await fleet.start(StubEngine(EngineReply(200, b"ours")))

        assert [(await fleet.whole()).body for _ in range(2)] == [b"ours"] * 2


async def test_a_data_plane_that_fails_is_a_fault_of_ours_and_no_lost_replica(
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
async def test_a_stream_keeps_nothing_of_a_body_that_its_request_has_dropped(fleet: Fleet, size: int) -> None:
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


async def test_a_replica_whose_engine_was_dead_already_costs_the_request_nothing(fleet: Fleet) -> None:
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


async def test_a_request_that_two_engines_died_of_gets_no_third(fleet: Fleet) -> None:
    engines = [StubEngine(DIED), StubEngine(DIED), StubEngine(EngineReply(200, b"alive"))]
    for engine in engines:
        await fleet.start(engine)

    error = await fleet.refusal()

    assert (error.status, error.code) == (503, "model_unavailable")
    assert [len(engine.requests) for engine in engines] == [1, 1, 0]
    assert fleet.in_flight == [0, 0, 0]


async def test_an_ordinary_503_of_an_engine_is_its_answer(fleet: Fleet) -> None:
    error = ApiError(503, "no", code="engine_error")
    engine = StubEngine(error)
    await fleet.start(engine)

    assert (await fleet.whole()).body == error.body()
    assert len(engine.requests) == 1


@pytest.mark.parametrize("answer", [frames(), failing(OSError("killed"))], ids=["nothing", "lost"])
async def test_a_stream_lost_before_its_first_frame_is_begun_again_elsewhere(
    fleet: Fleet, answer: Any
) -> None:
    await fleet.start(StubEngine(answer))
    await fleet.start(StubEngine(frames(FIRST, DONE)))

    assert await fleet.streamed() == FIRST + DONE


async def test_a_stream_lost_after_its_first_frame_ends_in_an_error_event(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    """One that another engine could not go on with: its engine keeps no delivered."""
    engine = StubEngine(failing(OSError("replica killed"), FIRST))
    await fleet.start(engine)

    with caplog.at_level(logging.CRITICAL, "ray.serve"):
        first, event, done, rest = (await fleet.streamed()).split(b"\n\n")

    assert first + b"\n\n" == FIRST
    assert json.loads(event.removeprefix(b"event: error\ndata: "))["error"]["code"] == "replica_lost"
    assert (done, rest) == (b"data: [DONE]", b"")
    assert len(engine.requests) == 1
    assert fleet.in_flight == [0]


async def test_a_request_that_a_hanging_replica_has_not_answered_goes_to_another(fleet: Fleet) -> None:
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
async def test_what_stays_on_a_hanging_replica_goes_to_the_next_one_that_can_take_it(
    fleet: Fleet, next_one: str
) -> None:
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


async def test_a_request_under_which_two_replicas_hang_is_given_up(fleet: Fleet) -> None:
    mutes = [MuteEngine(), MuteEngine()]
    for mute in mutes:
        await fleet.start(mute)
    asking = asyncio.create_task(fleet.refusal())
    await mutes[0].entered.wait()
    first, second = fleet.replicas
    fleet.known.keep_away(first, "silent")
    await mutes[1].entered.wait()
    await fleet.start(StubEngine(EngineReply(200)))

    fleet.known.keep_away(second, "silent")

    error = await asking
    assert (error.status, error.code) == (503, "model_unavailable")
