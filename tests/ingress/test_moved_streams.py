"""Streams whose replica is lost within them: the ingress and real data planes; only the engines are stubs."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from serve_app.api.body import KEPT, BodyMemory, BodyShare
from serve_app.api.engine_client import EngineReply, EngineRequest
from serve_app.api.errors import ApiError
from serve_app.api.trace_context import TraceContext
from serve_app.engine.api_errors import engine_died, engine_killed
from serve_app.engine.data_plane import DataPlane
from serve_app.ingress import relayed_request, retry_budget
from serve_app.ingress.replica_choice import Reservation
from serve_app.wire.continuation import DeliveredTokens
from tests.ingress.relaying import DIED, DONE, MODEL, Fleet, request
from tests.stub_engine import LIMIT_S, MuteEngine, StubEngine

MOVED = rb": continued on another replica after \d+\.\d\d s\n\n"
TOKENS = 40
KILLED = ApiError(503, "killed", code="engine_killed")
TRACE = TraceContext("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=1")


def frame(token: int) -> bytes:
    return b'data: {"id":"r-1","created":17,"choices":[{"token":%d}]}\n\n' % token


WHOLE = b"".join(frame(token) for token in range(TOKENS)) + DONE


class CountingEngine(StubEngine):
    """Counts from 0 on, or from where a continuation ends; stands still, or dies, at `until`."""

    def __init__(self, until: int = TOKENS, dies: ApiError | None = None, continuable: bool = True) -> None:
        super().__init__(RuntimeError("unused"))
        self.until, self.dies, self.continuable = until, dies, continuable
        self.reached, self.more = asyncio.Event(), asyncio.Semaphore(0)

    async def _reply(self) -> EngineReply:
        delivered = DeliveredTokens()
        sent = self.request.continuation
        begin = len(sent.tokens[0]) if sent is not None else 0
        assert sent is None or list(sent.tokens[0]) == list(range(begin))
        stream = self._count(begin, delivered)
        return EngineReply(200, stream=stream, delivered=delivered if self.continuable else None)

    async def _count(self, begin: int, delivered: DeliveredTokens) -> AsyncIterator[bytes]:
        for token in range(begin, min(TOKENS, max(self.until, begin + 1))):
            yield frame(token)
            delivered.note(0, [token])
            await asyncio.sleep(0)
        if self.until < TOKENS:
            self.reached.set()
            if self.dies is not None:
                self.request.state.lost = self.dies.code or ""
                yield self.dies.last_frames()
                return
            for token in range(self.until, TOKENS):
                await self.more.acquire()
                yield frame(token)
                delivered.note(0, [token])
        yield DONE

    def go_on(self, tokens: int = TOKENS) -> None:
        """Generate so many more."""
        for _ in range(tokens):
            self.more.release()


@asynccontextmanager
async def reading(fleet: Fleet, asked: EngineRequest | None = None) -> AsyncIterator[asyncio.Task[bytes]]:
    async def read() -> bytes:
        async with fleet.client.call(asked or request(wants_stream=True)) as reply:
            assert reply.stream is not None
            return b"".join([chunk async for chunk in reply.stream])

    task = asyncio.create_task(read())
    async with asyncio.timeout(LIMIT_S):
        yield task
    task.cancel()
    await asyncio.wait([task])


def without_comments(text: bytes) -> tuple[bytes, int]:
    return re.subn(MOVED, b"", text)


async def lose(plane: DataPlane) -> None:
    """As if its process had been killed."""
    for connection in list(plane._connections):
        connection.frames.close()
    await plane.stop()


async def test_a_stream_goes_on_where_its_lost_replica_stopped(fleet: Fleet) -> None:
    first, second = CountingEngine(until=25), CountingEngine()
    second.cached_tokens = 24
    asked = request(wants_stream=True, trace=TRACE, cache_salt="of a key")
    plane = await fleet.start(first)
    async with reading(fleet, asked) as answer:
        await first.reached.wait()
        await fleet.start(second)
        await lose(plane)
        text, moves = without_comments(await answer)

    assert (text, moves) == (WHOLE, 1)
    assert asked.state.cached_tokens == 24
    (got,) = second.requests
    assert got.trace == first.requests[0].trace == TRACE
    assert got.cache_salt == first.requests[0].cache_salt == "of a key"
    assert got.body == first.requests[0].body
    assert got.continuation is not None
    assert (got.continuation.created, got.continuation.moves) == (17, 1)
    assert fleet.in_flight == [0, 0]


async def test_a_dead_engine_core_is_a_lost_replica(fleet: Fleet) -> None:
    await fleet.start(CountingEngine(until=25, dies=engine_died()))
    await fleet.start(CountingEngine())
    async with reading(fleet) as answer:
        text, moves = without_comments(await answer)

    assert (text, moves) == (WHOLE, 1)


async def test_a_replica_that_ends_its_direction_is_lost_and_generates_no_more(fleet: Fleet) -> None:
    first = CountingEngine(until=25)
    plane = await fleet.start(first)
    async with reading(fleet) as answer:
        await first.reached.wait()
        await fleet.start(CountingEngine())
        fleet.stop("r1")  # or the stream might come back, for the port is still open
        (connection,) = plane._connections
        assert connection.frames._transport is not None
        connection.frames._transport.write_eof()
        text, moves = without_comments(await answer)
        await first.left.wait()

    assert (text, moves) == (WHOLE, 1)
    assert first.cancelled


async def test_a_reason_that_a_later_version_gives_is_a_loss_too(fleet: Fleet) -> None:
    await fleet.start(CountingEngine(until=25, dies=ApiError(503, "gone", code="engine_stolen")))
    await fleet.start(CountingEngine())
    async with reading(fleet) as answer:
        text, moves = without_comments(await answer)

    assert (text, moves) == (WHOLE, 1)


async def test_a_replica_that_hangs_is_a_lost_one_while_there_is_another(fleet: Fleet) -> None:
    first = CountingEngine(until=25)
    await fleet.start(first)
    async with reading(fleet) as answer:
        await first.reached.wait()
        await fleet.start(CountingEngine())
        fleet.known.keep_away(fleet.replicas[0], "it has sent no heartbeat for 2 s")
        text, moves = without_comments(await answer)

    assert (text, moves) == (WHOLE, 1)
    assert first.cancelled


async def test_without_another_replica_a_stream_waits_for_the_next_one(fleet: Fleet) -> None:
    first = CountingEngine(until=25)
    plane = await fleet.start(first)
    async with reading(fleet) as answer:
        await first.reached.wait()
        fleet.lose()
        await lose(plane)
        await fleet.handle.asked.wait()
        await fleet.start(CountingEngine())
        text, moves = without_comments(await answer)

    assert (text, moves) == (WHOLE, 1)


async def test_a_stream_moves_as_often_as_it_goes_on_in_between(fleet: Fleet) -> None:
    """Losses of innocent streams: twenty tokens lie between any two of them."""
    for until in (18, 36):
        await fleet.start(CountingEngine(until=until, dies=engine_died()))
    await fleet.start(CountingEngine())
    async with reading(fleet) as answer:
        text, moves = without_comments(await answer)

    assert (text, moves) == (WHOLE, 2)


async def test_a_request_that_two_engines_died_of_gets_no_third_within_a_stream(fleet: Fleet) -> None:
    engines = [CountingEngine(until=n, dies=engine_died()) for n in (20, 24)]
    third = CountingEngine()
    for engine in (*engines, third):
        await fleet.start(engine)
    async with reading(fleet) as answer:
        text, _ = without_comments(await answer)

    assert third.requests == []
    assert text.startswith(b"".join(frame(n) for n in range(24)))
    event = text.split(b"\n\n")[-3]
    assert json.loads(event.removeprefix(b"event: error\ndata: "))["error"]["code"] == "replica_lost"


@pytest.mark.parametrize(
    ("errors", "whole"),
    [
        ([engine_killed()] * 3, True),  # a rack goes down, process after process
        ([engine_killed()] * 4, False),
        ([engine_died(), engine_killed()], True),
        ([engine_died(), engine_killed(), engine_killed()], False),
    ],
    ids=["killed x 3", "killed x 4", "died and killed", "died and killed x 2"],
)
async def test_an_engine_that_was_killed_speaks_less_against_a_request_than_one_that_died(
    fleet: Fleet, errors: list[ApiError], whole: bool
) -> None:
    for tokens, error in enumerate(errors, start=20):
        await fleet.start(CountingEngine(until=tokens, dies=error))
    await fleet.start(CountingEngine())
    async with reading(fleet) as answer:
        text, moves = without_comments(await answer)

    assert (text == WHOLE) == whole
    assert moves == len(errors) - (not whole)


@pytest.mark.parametrize("stood_still", ["before it came", "since about then", "since it was there"])
async def test_an_engine_that_stood_still_before_a_stream_came_does_not_speak_against_it(
    fleet: Fleet, stood_still: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if stood_still == "since it was there":
        monkeypatch.setattr(retry_budget, "BEAT_S", 0.0)  # it is known exactly since when
    still = MuteEngine()
    for engine in (CountingEngine(until=20, dies=engine_died()), still, CountingEngine()):
        await fleet.start(engine)
    async with reading(fleet) as answer:
        await still.entered.wait()
        fleet.replicas[1].still_s = 3600.0 if stood_still == "before it came" else 1e-9
        fleet.known.keep_away(fleet.replicas[1], "its engine has taken no step for 3600 s")
        text, _ = without_comments(await answer)

    assert (text == WHOLE) == (stood_still != "since it was there")


@pytest.mark.parametrize("why", ["not continuable", "a long body", "many tokens", "refused"])
async def test_what_cannot_be_continued_ends_in_an_error_event(
    fleet: Fleet, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = CountingEngine(until=25, continuable=why != "not continuable")
    second: StubEngine = CountingEngine()
    if why == "a long body":
        monkeypatch.setattr(relayed_request, "MOST_BODY_BYTES", 3)
    elif why == "many tokens":
        monkeypatch.setattr(relayed_request, "MOST_TOKENS", 20)
    elif why == "refused":
        second = StubEngine(ApiError(409, "no", code="not_continuable"))
    plane = await fleet.start(first)
    async with reading(fleet) as answer:
        await first.reached.wait()
        await fleet.start(second)
        await lose(plane)
        text = await answer

    assert text.startswith(b"".join(frame(n) for n in range(25)))
    assert b'"code":"replica_lost"' in text
    assert text.endswith(DONE)
    assert len(second.requests) == (why == "refused")
    assert fleet.in_flight == [0, 0]


async def test_a_client_that_leaves_a_moved_stream_ends_its_generation(fleet: Fleet) -> None:
    first, second = CountingEngine(until=25), CountingEngine(until=30)
    plane = await fleet.start(first)
    async with reading(fleet) as answer:
        await first.reached.wait()
        await fleet.start(second)
        await lose(plane)
        await second.reached.wait()
        answer.cancel()
        await second.left.wait()

    assert second.cancelled
    assert fleet.in_flight == [0, 0]


async def test_a_request_whose_channel_is_closed_while_it_opens_goes_to_another_replica(fleet: Fleet) -> None:
    """It must not end as if its client had left."""
    engine = CountingEngine()
    await fleet.start(engine)
    (replica,) = fleet.replicas
    async with reading(fleet) as answer:
        while replica not in fleet.channels._opening:
            await asyncio.sleep(0)
        fleet.channels.close(replica, "its engine stands still")
        text, _ = without_comments(await answer)

    assert text == WHOLE


async def test_streams_leave_a_draining_replica_for_others(fleet: Fleet) -> None:
    first, second = CountingEngine(until=25), CountingEngine()
    await fleet.start(first)
    async with reading(fleet, request(wants_stream=True, cache_salt="of a key")) as answer:
        await first.reached.wait()
        await fleet.start(second)
        fleet.stop("r1")
        first.go_on(1)
        text, moves = without_comments(await answer)
        await first.left.wait()

    assert (text, moves) == (WHOLE, 1)
    assert first.cancelled
    (got,) = second.requests
    assert got.continuation is not None
    assert 0 < len(got.continuation.tokens[0]) <= 26
    assert got.cache_salt == "of a key"
    assert fleet.in_flight == [0]


async def test_streams_stay_until_the_replica_has_drained_for_the_time_of_the_knob(fleet: Fleet) -> None:
    fleet.knobs["drain_move_after_s"] = 3600
    first, second = CountingEngine(until=25), CountingEngine()
    await fleet.start(first)
    async with reading(fleet) as answer:
        await first.reached.wait()
        fleet.stop("r1")
        await fleet.start(second)
        first.go_on()
        text, moves = without_comments(await answer)

    assert (text, moves, second.requests) == (WHOLE, 0, [])


async def test_a_stream_of_a_draining_replica_moves_once_another_has_room(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relayed_request, "_MOVE_RETRY_S", 0.0)
    first, second = CountingEngine(until=25), CountingEngine()
    await fleet.start(first)
    looks = looks_for_room(fleet, monkeypatch)
    async with reading(fleet) as answer:
        await first.reached.wait()
        fleet.stop("r1")
        await fleet.start(second)
        busy = [fleet.known.take(MODEL.max_ongoing_requests) for _ in range(MODEL.max_ongoing_requests)]
        first.go_on(1)
        assert await looks.get() is None
        for slot in busy:
            assert slot is not None
            fleet.known.release(slot)
        first.go_on(1)
        text, moves = without_comments(await answer)

    assert (text, moves) == (WHOLE, 1)


def looks_for_room(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[Reservation | None]:
    """What streams found that were to move."""
    found: asyncio.Queue[Reservation | None] = asyncio.Queue()
    take = fleet.admission.take_for_move

    def look(*args: Any) -> Reservation | None:
        found.put_nowait(slot := take(*args))
        return slot

    monkeypatch.setattr(fleet.admission, "take_for_move", look)
    return found


@pytest.mark.parametrize("why", ["no other replica", "not continuable", "refused", "lost", "switched off"])
async def test_a_stream_that_cannot_move_ends_where_it_began(
    fleet: Fleet, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relayed_request, "_MOVE_RETRY_S", 0.0)
    refusing = StubEngine(ApiError(409, "no", code="not_continuable"))
    first = CountingEngine(until=25, continuable=why != "not continuable")
    await fleet.start(first)
    async with reading(fleet) as answer:
        await first.reached.wait()
        fleet.stop("r1")
        if why == "refused":
            await fleet.start(refusing)
        elif why == "lost":
            await lose(await fleet.start(CountingEngine()))
        elif why == "switched off":
            fleet.knobs["drain_move_after_s"] = None
        if why in ("not continuable", "switched off"):
            await fleet.start(CountingEngine())
        first.go_on(1)
        if why == "refused":
            await refusing.entered.wait()
        first.go_on()
        text, moves = without_comments(await answer)

    assert (text, moves) == (WHOLE, 0)
    assert not first.cancelled
    assert sum(fleet.in_flight) == 0
    assert len(refusing.requests) == (why == "refused")  # asked once


# Another model under the same name.


async def test_a_draining_stream_does_not_move_to_another_model(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relayed_request, "_MOVE_RETRY_S", 0.0)
    first, other, same = CountingEngine(until=25), CountingEngine(), CountingEngine()
    await fleet.start(first, identity="old")
    looks = looks_for_room(fleet, monkeypatch)
    async with reading(fleet) as answer:
        await first.reached.wait()
        await fleet.start(other, identity="new")
        fleet.stop("r1")
        first.go_on(1)
        assert await looks.get() is None
        await fleet.start(same, identity="old")
        first.go_on(1)
        text, moves = without_comments(await answer)

    assert (text, moves, other.requests) == (WHOLE, 1, [])
    assert same.requests[0].continuation is not None
    assert same.requests[0].continuation.identity == "old"


async def test_a_lost_stream_does_not_go_on_at_another_model(fleet: Fleet) -> None:
    first, other = CountingEngine(until=25), CountingEngine()
    plane = await fleet.start(first, identity="old")
    async with reading(fleet) as answer:
        await first.reached.wait()
        await fleet.start(other, identity="new")
        fleet.stop("r1")
        await lose(plane)
        text = await answer

    assert other.requests == []
    assert text.startswith(b"".join(frame(n) for n in range(25)))
    assert b'"code":"replica_lost"' in text


@pytest.mark.parametrize("identity", ["old", "new"])
async def test_a_stream_that_waits_for_a_replica_takes_only_one_of_its_model(
    fleet: Fleet, identity: str
) -> None:
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


async def test_a_request_without_an_answer_goes_to_whichever_model_there_is(fleet: Fleet) -> None:
    mute = MuteEngine()
    plane = await fleet.start(mute, identity="old")
    async with reading(fleet) as answer:
        await mute.entered.wait()
        await fleet.start(CountingEngine(), identity="new")
        fleet.stop("r1")
        await lose(plane)
        text, _ = without_comments(await answer)

    assert text == WHOLE


# The retry budget of moves.


@pytest.mark.parametrize(("loss", "moves_tried"), [(DIED, 1), (KILLED, 4)], ids=["died", "killed"])
async def test_a_stream_whose_moves_end_engines_stays_where_it_is(
    fleet: Fleet, loss: ApiError, moves_tried: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relayed_request, "_MOVE_RETRY_S", 0.0)
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
            while frame(token) not in text:  # each is passed on before the next one comes
                text += await anext(reply.stream)
        text += b"".join([chunk async for chunk in reply.stream])

    assert (text, len(ending.requests)) == (WHOLE, moves_tried)


async def test_tokens_of_the_replica_that_is_left_do_not_restore_what_a_move_has_cost(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty tokens at the draining replica say nothing about what the stream does to the next one."""
    monkeypatch.setattr(relayed_request, "_MOVE_RETRY_S", 0.0)
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


# The end of a stream.


class LingeringEngine(CountingEngine):
    """Ends its stream some time after its last event."""

    async def _count(self, begin: int, delivered: DeliveredTokens) -> AsyncIterator[bytes]:
        async for data in super()._count(begin, delivered):
            yield data
        self.reached.set()
        await self.more.acquire()


@pytest.mark.parametrize("then", ["it drains", "it is lost"])
async def test_a_stream_whose_last_event_is_out_does_not_go_on_elsewhere(fleet: Fleet, then: str) -> None:
    first, second = LingeringEngine(), CountingEngine()
    plane = await fleet.start(first)
    async with reading(fleet) as answer:
        await first.reached.wait()
        await fleet.start(second)
        fleet.stop("r1")
        if then == "it is lost":
            await lose(plane)
        first.go_on()
        text = await answer

    assert (text, second.requests) == (WHOLE, [])


# Replicas that refuse, and replicas that hang while they drain.


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


async def test_streams_leave_a_draining_replica_that_hangs(fleet: Fleet) -> None:
    fleet.knobs["drain_move_after_s"] = None
    first, second = CountingEngine(until=25), CountingEngine()
    await fleet.start(first)
    (replica,) = fleet.replicas
    async with reading(fleet) as answer:
        await first.reached.wait()
        await fleet.start(second)
        fleet.stop("r1")
        fleet.known.keep_away(replica, "its engine has taken no step for 5 s")
        text, moves = without_comments(await answer)

    assert (text, moves) == (WHOLE, 1)


async def test_a_draining_replica_that_hangs_for_good_is_given_up_without_another_of_its_model(
    fleet: Fleet,
) -> None:
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


# The memory of what is kept.


async def test_what_is_kept_of_a_stream_counts_as_memory_until_its_end(fleet: Fleet) -> None:
    memory = BodyMemory(1 << 20)
    first = CountingEngine(until=25)
    await fleet.start(first)
    asked = request(wants_stream=True, kept=BodyShare(memory, KEPT))
    async with reading(fleet, asked) as answer:
        await first.reached.wait()
        while memory.used_bytes < len(asked.body) + 4 * 25:
            await asyncio.sleep(0)
        first.go_on()
        await answer

    assert memory.used_bytes == 0


async def test_a_stream_without_memory_to_keep_it_cannot_go_on_elsewhere(fleet: Fleet) -> None:
    memory = BodyMemory(100)
    plane = await fleet.start(first := CountingEngine(until=25))
    second = CountingEngine()
    async with reading(fleet, request(wants_stream=True, kept=BodyShare(memory, KEPT))) as answer:
        await first.reached.wait()
        await fleet.start(second)
        await lose(plane)
        text = await answer

    assert b'"code":"replica_lost"' in text
    assert (memory.used_bytes, second.requests) == (0, [])
