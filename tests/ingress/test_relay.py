"""Requests relayed to real data planes on loopback, and the load that they put on replicas.

`tests/simulation` has the losses of replicas at any moment, and clients that leave.
"""

import asyncio
import gc
import logging
import sys
from typing import Any

import pytest

from serve_app.api.engine_client import EngineReply
from serve_app.api.errors import ApiError
from serve_app.api.prompt_prefix import PromptPrefix
from serve_app.ingress.replica import SEQUENCE_TOKENS
from serve_app.wire.data_plane import TokenCounts
from tests.ingress.cold_model import of_lane
from tests.ingress.fakes import BODY, WAITED_S, request
from tests.ingress.fleet import DEAD, DIED, DONE, FIRST, CountingEngine, Fleet, frame, lose
from tests.stub_engine import MuteEngine, StubEngine, failing, frames, stalled

LONG = b"x" * 4000
LONG_TOKENS = 1000
LATER = ApiError(429, "later", headers={"Retry-After": "3", "X-Internal": "1"})
ORDINARY = ApiError(503, "no", code="engine_error")
UNSAID = EngineReply(503, b'{"error":{"param":"engine_dead"}}')
PREFIX = PromptPrefix(2000, (1, 2, 3), 9)


@pytest.mark.parametrize(
    ("answer", "reply"),
    [
        (EngineReply(200, b'{"ok":1}'), EngineReply(200, b'{"ok":1}')),
        (LATER, EngineReply(429, LATER.body(), headers={"Retry-After": "3"})),
        (ORDINARY, EngineReply(503, ORDINARY.body())),
        (UNSAID, UNSAID),  # it names a loss, and is none
    ],
)
async def test_a_whole_answer_is_forwarded(fleet: Fleet, answer: Any, reply: EngineReply) -> None:
    engine, asked = StubEngine(answer), request()
    await fleet.start(engine)

    assert await fleet.whole(asked) == reply
    (got,) = engine.requests
    assert (got.message.operation, got.message.body, got.request_id) == ("chat_completions", BODY, "r-1")
    assert got.waited_s >= WAITED_S
    assert (fleet.in_flight, asked.left_engine) == ([0], False)


async def test_a_fault_of_our_own_code_is_no_lost_replica(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    engine = StubEngine(RuntimeError("a bug"))
    await fleet.start(engine)

    with caplog.at_level(logging.CRITICAL, "ray.serve"):
        reply = await fleet.whole()

    assert (reply.status, b'"internal_error"' in reply.body, len(engine.requests)) == (500, True, 1)


async def test_a_stream_comes_through_whole(fleet: Fleet) -> None:
    """A client's tool may have the name of a loss, and so may its stop string."""
    calls = b'data: {"tool_calls":[{"function":{"name":"engine_died"}}],"stop_reason":"engine_killed"}\n\n'
    await fleet.start(StubEngine(frames(FIRST, calls, DONE)))

    assert await fleet.streamed() == FIRST + calls + DONE
    assert fleet.in_flight == [0]


async def test_a_stream_keeps_no_released_body(fleet: Fleet) -> None:
    """It may last for minutes, and nobody will send the body again."""
    await fleet.start(StubEngine(stalled(FIRST)))
    body = bytes(3 << 20)
    before = sys.getrefcount(body)

    asked = request(body=body)
    async with fleet.client.call(asked) as reply:
        assert reply.stream is not None
        assert await anext(reply.stream) == FIRST
        asked.release_body()  # as `EngineResponse` does
        gc.collect()

        assert sys.getrefcount(body) == before


@pytest.mark.parametrize("wants_stream", [True, False])
async def test_background_request_in_an_engine_has_a_deadline(fleet: Fleet, wants_stream: bool) -> None:
    fleet.knobs["background_wait_timeout_s"] = 0.1
    await fleet.start(MuteEngine())  # other lanes need all of it

    with pytest.raises(ApiError, match=r"background_wait_timeout_s = 0\.1") as refused:
        async with fleet.client.call(of_lane("background", wants_stream=wants_stream)):
            pass

    assert (refused.value.status, refused.value.code) == (503, "background_wait_timeout")
    assert fleet.replicas[0].all_in_flight == 0


# Lost replicas.


@pytest.mark.parametrize(
    "answer",
    [DEAD, DIED, frames(), failing(OSError("killed"))],
    ids=["dead before", "died", "ended without an event", "lost"],
)
async def test_a_request_without_an_event_restarts_elsewhere(fleet: Fleet, answer: Any) -> None:
    await fleet.start(StubEngine(answer))
    second = StubEngine(stalled(FIRST))
    await fleet.start(second)

    async with fleet.client.call(request(body=LONG)) as reply:
        assert reply.stream is not None
        assert await anext(reply.stream) == FIRST
        assert fleet.loads == [0, SEQUENCE_TOKENS]  # its prompt has moved with it

    assert len(second.requests) == 1
    assert (fleet.loads, fleet.in_flight) == ([0, 0], [0, 0])


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

    assert (error.status, error.code) == (503, "replicas_lost")
    assert fleet.in_flight == [0, 0]


async def test_a_stranger_on_a_replicas_port_gets_no_request(fleet: Fleet) -> None:
    stranger, ours = StubEngine(EngineReply(200)), StubEngine(stalled(FIRST))
    await fleet.start(stranger, token="the token of the replica that had this port before")
    await fleet.start(ours)

    async with fleet.client.call(request()), fleet.client.call(request()):
        assert fleet.in_flight == [0, 2]  # without load, it is not picked again
    assert stranger.requests == []


async def test_wait_after_a_loss_is_lost_and_not_queued(fleet: Fleet) -> None:
    mute, lost = MuteEngine(), request()
    plane = await fleet.start(mute)
    asked = asyncio.create_task(fleet.whole(lost))
    await mute.entered.wait()
    fleet.lose()
    await lose(plane)
    await fleet.handle.asked.wait()

    await fleet.start(StubEngine(EngineReply(200, b"second")))

    assert (await asked).body == b"second"
    assert lost.lost_s > lost.queued_s == 0.0


@pytest.mark.parametrize("other", ["there before", "new", "well again", "none"])
async def test_requests_of_a_hanging_replica_go_to_another(fleet: Fleet, other: str) -> None:
    mute, well = MuteEngine(), StubEngine(EngineReply(200, b"{}"))
    await fleet.start(mute)
    if other == "well again":
        await fleet.start(well)
        fleet.known.keep_away(fleet.replicas[1], "it has sent no heartbeat for 2 s")
    asking = asyncio.create_task(fleet.whole())
    await mute.entered.wait()
    if other == "there before":
        await fleet.start(well)

    fleet.known.keep_away(fleet.replicas[0], "it has sent no heartbeat for 2 s")

    if other == "none":
        assert fleet.channels.current(fleet.replicas[0]) is not None
        assert not asking.done()
        asking.cancel()
        return
    if other == "new":
        await fleet.start(well)
    elif other == "well again":
        fleet.known.welcome(fleet.replicas[1])
    assert (await asking).body == b"{}"
    await mute.left.wait()
    assert mute.cancelled


# The tokens that a client got of an answer that it did not read to its end.


@pytest.mark.parametrize("continuable", [True, False])
async def test_cut_stream_counts_its_prompt_and_its_events(fleet: Fleet, continuable: bool) -> None:
    engine = CountingEngine(until=24, continuable=continuable)
    engine.counts = TokenCounts(16, 1000, 1000, 1)
    await fleet.start(engine)
    asked, read = request(wants_stream=True, prefix=PREFIX), b""
    async with fleet.client.call(asked) as reply:
        assert reply.stream is not None
        async for chunk in reply.stream:
            read += chunk
            if read.endswith(frame(23)):
                break

    assert asked.left_engine
    assert (asked.counts.cached, asked.counts.input) == (16, 1000)
    # The tokens of the last pieces count once the client has asked for more.
    assert asked.counts.output in range(20, 25)
    assert fleet.known.prefixes.bytes_per_token == 2.0


@pytest.mark.parametrize("queued", [False, True])
async def test_client_that_leaves_a_working_engine_is_noted(fleet: Fleet, queued: bool) -> None:
    engine, asked = MuteEngine(), request()
    if not queued:
        await fleet.start(engine)
    asking = asyncio.create_task(fleet.whole(asked))
    await (fleet.handle.asked if queued else engine.entered).wait()

    asking.cancel()
    await asyncio.wait((asking,))

    assert (asked.left_engine, asked.counts.output) == (not queued, None)


# The load on replicas.


async def test_a_stream_counts_its_prompt_until_its_first_event(fleet: Fleet) -> None:
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
