"""Streams that another replica continues, because theirs is lost or drains.

`tests/simulation` has losses at any moment: each stream must have the tokens that one engine gives alone.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from serve_app.api.body_memory import KEPT, BodyMemory, BodyShare
from serve_app.api.dialect import dialect_of
from serve_app.api.engine_client import DeliveredTokens, Operation
from serve_app.api.errors import ApiError
from serve_app.api.prompt_prefix import PromptPrefix
from serve_app.api.trace import TraceContext
from serve_app.wire.data_plane import TokenCounts
from tests.ingress.fakes import request
from tests.ingress.fleet import (
    DIED,
    KILLED,
    MODEL,
    TOKENS,
    WHOLE,
    CountingEngine,
    Fleet,
    frame,
    lose,
    reading,
    without_comments,
)
from tests.stub_engine import StubEngine, stalled
from tests.timing import until

TRACE = TraceContext("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=1")


class LingeringEngine(CountingEngine):
    """Ends its stream some time after its last event."""

    async def _count(self, begin: int, delivered: DeliveredTokens) -> AsyncIterator[bytes]:
        async for data in super()._count(begin, delivered):
            yield data
        self.reached.set()
        await self.more.acquire()


async def test_a_stream_goes_on_where_its_lost_replica_stopped(fleet: Fleet) -> None:
    first, second = CountingEngine(until=25), CountingEngine()
    second.counts.cached = 24
    asked = request(wants_stream=True, context=TRACE, cache_salt="of a key")
    plane = await fleet.start(first)
    async with reading(fleet, asked) as answer:
        await first.reached.wait()
        await fleet.start(second)
        await lose(plane)
        text, moves = without_comments(await answer)

    assert (text, moves) == (WHOLE, 1)
    assert asked.counts.cached == 24
    (got,) = second.requests
    assert got.trace == first.requests[0].trace == TRACE
    assert got.message.cache_salt == first.requests[0].message.cache_salt == "of a key"
    assert got.message.body == first.requests[0].message.body
    assert got.message.continuation is not None
    assert (got.message.continuation.created, got.message.continuation.moves) == (17, 1)
    assert (fleet.in_flight, fleet.loads) == ([0, 0], [0, 0])


async def test_dead_cores_that_heartbeats_report_count_as_failed(fleet: Fleet) -> None:
    """The engines cannot say so themselves, because their streams wait for a slow client."""
    engines = [CountingEngine(until=5), CountingEngine(until=10), CountingEngine()]
    await fleet.start(engines[0])
    async with reading(fleet) as answer:
        for number in (0, 1):
            await engines[number].reached.wait()
            await fleet.start(engines[number + 1])
            fleet.known.keep_away(fleet.replicas[number], "its engine core has died")
        text = await answer

    assert b"replica_lost" in text
    assert engines[2].requests == []


async def test_moved_stream_that_its_client_leaves_counts_its_prompt_once(fleet: Fleet) -> None:
    first, second = CountingEngine(until=25), CountingEngine(until=30)
    first.counts = TokenCounts(16, 30_000, 30_000, 1)
    second.counts = TokenCounts(0, 30_025, 30_025, 1)  # delivered tokens are prompt to it
    asked = request(wants_stream=True, prefix=PromptPrefix(2000, (1, 2, 3), 9))
    plane, text = await fleet.start(first), b""
    async with fleet.client.call(asked) as reply:
        assert reply.stream is not None
        async for chunk in reply.stream:
            text += chunk
            if text.endswith(frame(24)):
                await fleet.start(second)
                await lose(plane)
            if text.endswith(frame(29)):
                break

    assert (asked.counts.cached, asked.counts.input) == (16, 30_000)
    # The tokens of the last pieces count once the client has asked for more.
    assert asked.counts.output in range(25, 31)


@pytest.mark.parametrize("identity", ["old", "new"])
async def test_a_waiting_stream_takes_only_a_replica_of_its_model(fleet: Fleet, identity: str) -> None:
    first, second = CountingEngine(until=25), CountingEngine()
    plane = await fleet.start(first, identity="old")
    async with reading(fleet) as answer:
        await first.reached.wait()
        fleet.lose()
        await lose(plane)
        await fleet.handle.asked.wait()
        await fleet.start(second, identity=identity)
        text, moves = without_comments(await answer)

    assert (text == WHOLE, moves, len(second.requests)) == (
        (True, 1, 1) if identity == "old" else (False, 0, 0)
    )


@pytest.mark.parametrize(
    ("until", "begun"), [((18, 36), 3), ((20, 24), 2)], ids=["18 tokens each", "4 tokens from the second"]
)
async def test_a_stream_may_lose_one_engine_per_sixteen_tokens(
    fleet: Fleet, until: tuple[int, int], begun: int
) -> None:
    engines = [*(CountingEngine(until=tokens, dies=DIED) for tokens in until), CountingEngine()]
    for engine in engines:
        await fleet.start(engine)
    async with reading(fleet) as answer:
        text, moves = without_comments(await answer)

    assert (moves, sum(len(engine.requests) for engine in engines)) == (begun - 1, begun)
    assert text.startswith(b"".join(frame(token) for token in range(24)))
    assert text == WHOLE if begun == 3 else b'"code":"replica_lost"' in text


@pytest.mark.parametrize("status", [429, 503])
async def test_a_lost_stream_passes_over_a_replica_that_is_full(fleet: Fleet, status: int) -> None:
    first, full = CountingEngine(until=25), StubEngine(ApiError(status, "later", code="queue_full"))
    plane = await fleet.start(first)
    async with reading(fleet) as answer:
        await first.reached.wait()
        await fleet.start(full)
        fleet.stop("r1")
        await lose(plane)
        await full.entered.wait()
        await fleet.start(CountingEngine())
        text, moves = without_comments(await answer)

    assert (text, moves) == (WHOLE, 1)
    assert len(full.requests) >= 1


@pytest.mark.parametrize("operation", ["chat_completions", "messages", "responses"])
async def test_stream_without_continuation_ends_as_its_api_has_it(fleet: Fleet, operation: Operation) -> None:
    event = b'event: response.output_text.delta\ndata: {"sequence_number":4}\n\n'
    plane = await fleet.start(StubEngine(stalled(event)))
    asked = request(wants_stream=True, operation=operation)

    async with fleet.client.call(asked) as reply:
        assert reply.stream is not None
        assert await anext(reply.stream) == event
        await lose(plane)
        text = b"".join([chunk async for chunk in reply.stream])

    error = ApiError(
        502, "Model 'tide': the engine replica was lost while it was generating.", code="replica_lost"
    )
    assert text == dialect_of(operation).last_frames(error, asked, event)


# Draining replicas.


async def test_streams_leave_a_draining_replica_for_others(fleet: Fleet) -> None:
    first, second = CountingEngine(until=25), CountingEngine()
    await fleet.start(first, identity="old")
    async with reading(fleet, request(wants_stream=True, cache_salt="of a key")) as answer:
        await first.reached.wait()
        await fleet.start(CountingEngine(), identity="new")
        fleet.stop("r1")
        first.go_on(1)  # there is no other replica of its model yet
        await fleet.start(second, identity="old")
        first.go_on(1)
        text, moves = without_comments(await answer)
        await first.left.wait()

    assert (text, moves) == (WHOLE, 1)
    assert first.cancelled
    (got,) = second.requests
    assert got.message.continuation is not None
    assert 0 < len(got.message.continuation.tokens[0]) <= 27
    assert (got.message.continuation.model_identity, got.message.cache_salt) == ("old", "of a key")
    assert fleet.in_flight == [0, 0]


@pytest.mark.parametrize(
    "why", ["no other replica", "another model", "not continuable", "refused", "lost", "switched off"]
)
async def test_a_stream_that_cannot_move_stays(fleet: Fleet, why: str) -> None:
    first, other = CountingEngine(until=25, continuable=why != "not continuable"), CountingEngine()
    refused = StubEngine(ApiError(409, "no", code="not_continuable"))
    await fleet.start(first, identity="old")
    async with reading(fleet) as answer:
        await first.reached.wait()
        fleet.stop("r1")
        if why == "refused":
            await fleet.start(refused, identity="old")
        elif why == "lost":
            await lose(await fleet.start(CountingEngine(), identity="old"))
        elif why != "no other replica":
            await fleet.start(other, identity="new" if why == "another model" else "old")
        if why == "switched off":
            fleet.knobs["drain_move_after_s"] = None
        first.go_on(1)
        if why == "refused":
            await refused.entered.wait()
        first.go_on()
        text, moves = without_comments(await answer)

    assert (text, moves, other.requests) == (WHOLE, 0, [])
    assert not first.cancelled
    assert sum(fleet.in_flight) == 0
    assert len(refused.requests) == (why == "refused")  # asked once


@pytest.mark.parametrize(("loss", "moves_tried"), [(DIED, 1), (KILLED, 4)], ids=["died", "killed"])
async def test_a_stream_whose_moves_kill_engines_stays(
    fleet: Fleet, loss: ApiError, moves_tried: int
) -> None:
    first, ending = CountingEngine(until=25), StubEngine(loss)
    await fleet.start(first)
    async with fleet.client.call(request(wants_stream=True)) as reply:
        assert reply.stream is not None
        await first.reached.wait()
        await fleet.start(ending)
        fleet.stop("r1")
        text = b""
        for token in range(25, TOKENS):
            first.go_on(1)
            while frame(token) not in text:  # each is forwarded before the next one comes
                text += await anext(reply.stream)
        text += b"".join([chunk async for chunk in reply.stream])

    assert (text, len(ending.requests)) == (WHOLE, moves_tried)


async def test_tokens_of_the_old_replica_refund_no_move(fleet: Fleet) -> None:
    """Twenty tokens at the draining replica say nothing about what the stream does to the next one."""
    first = CountingEngine(until=10)
    dying = [StubEngine(DIED) for _ in range(4)]
    plane = await fleet.start(first)
    async with reading(fleet) as answer:
        await first.reached.wait()
        for engine in dying:
            await fleet.start(engine)
        fleet.stop("r1")
        first.go_on(20)
        while sum(len(engine.requests) for engine in dying) < 1 or not first.more.locked():
            await asyncio.sleep(0)
        await lose(plane)
        text = await answer

    assert b'"code":"replica_lost"' in text
    assert sum(len(engine.requests) for engine in dying) == 2


async def test_a_draining_replica_that_hangs_for_good_is_given_up(fleet: Fleet) -> None:
    first = CountingEngine(until=25)
    await fleet.start(first, identity="old")
    (replica,) = fleet.replicas
    async with reading(fleet) as answer:
        await first.reached.wait()
        await fleet.start(CountingEngine(), identity="new")
        fleet.stop("r1")
        replica.still_s = MODEL.engine_hang_timeout_s - 0.5
        fleet.known.keep_away(replica, "its engine has taken no step for 29 s")
        done, _ = await asyncio.wait([answer], timeout=0)
        assert not done
        replica.still_s = MODEL.engine_hang_timeout_s
        fleet.known.keep_away(replica, "its engine has taken no step for 30 s")
        text = await answer

    assert b'"code":"replica_lost"' in text


@pytest.mark.parametrize("then", ["it drains", "it is lost"])
async def test_a_complete_stream_is_forgotten_and_does_not_move(fleet: Fleet, then: str) -> None:
    first, second = LingeringEngine(until=25), CountingEngine()
    memory = BodyMemory(1 << 20)
    asked = request(wants_stream=True, kept=BodyShare(memory, KEPT))
    plane = await fleet.start(first)
    async with reading(fleet, asked) as answer:
        await first.reached.wait()
        await until(lambda: memory.used_bytes >= len(asked.body) + 4 * 25)
        first.go_on(TOKENS - 25)
        await until(lambda: not memory.used_bytes)  # released at `[DONE]`, though the stream has not ended
        assert not answer.done()
        await fleet.start(second)
        fleet.stop("r1")
        if then == "it is lost":
            await lose(plane)
        first.go_on()
        text = await answer

    assert (text, second.requests) == (WHOLE, [])
