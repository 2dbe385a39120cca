"""The queue of a cold model, and keep-alives: in the queue, before output, and always in `background`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.api.dialect import ColdWait
from serve_app.api.engine_client import EngineReply, Operation
from serve_app.api.engine_response import EngineResponse
from serve_app.api.errors import ApiError
from serve_app.ingress.cold_start_progress import ColdStartProgress
from serve_app.settings.caller import Lane
from tests.api.connection import SCOPE, Connection
from tests.api.traffic_log import TrafficLog
from tests.ingress.cold_model import ColdModel, of_lane
from tests.ingress.fakes import Waits, request
from tests.ingress.fleet import DONE, FIRST, MODEL, CountingEngine, Fleet, lose, reading
from tests.stub_engine import LIMIT_S, MuteEngine, StubEngine, frames
from tests.timing import Clock, until

INTERVAL_S = 0.001
"""By the explicit clock. The event loop waits for it too, so it is short."""
BROKEN = ApiError(400, "model = 'pirate': the adapter cannot be loaded", code="adapter_invalid")


# The queue.


async def test_the_queue_can_be_measured() -> None:
    model = ColdModel()

    def measured() -> tuple[int, int, list[float]]:
        return len(model.queue), model.queue.body_bytes(), model.queue.waits_s()

    await model.ask("s1", asked=of_lane(body=b"1234567"))
    model.now += 7.0
    await model.ask("r1", retry=True)
    model.now += 3.0

    assert measured() == (2, 407, [3.0, 10.0])
    await model.leave("s1")
    assert measured() == (1, 400, [3.0])
    await model.leave("r1")
    assert measured() == (0, 0, [])


@pytest.mark.parametrize("lane", ["standard", "background"])
async def test_full_queue_refuses_the_newest_of_the_key_with_the_most(lane: Lane) -> None:
    model = ColdModel(max_held_requests=6)
    other_lane: Lane = "background" if lane == "standard" else "standard"
    await model.ask("x1 x2 x3 x4 x5 x6", other_lane)  # which has a bound of its own
    await model.ask("f1 f2 f3 f4 f5 f6", lane)
    await model.ask("o1 o2 o3 o4", lane)

    refused = [name for name, task in model.tasks.items() if task.done()]
    assert refused == ["f4", "f5", "f6", "o4"]
    assert {(model.error_of(name).status, model.error_of(name).code) for name in refused} == {
        (429, "queue_full")
    }


@given(st.lists(st.sampled_from("aaaaabbc"), min_size=1, max_size=60), st.integers(0, 12))
async def test_full_queue_keeps_keys_to_equal_shares(arrivals: list[str], bound: int) -> None:
    model = ColdModel(max_held_requests=bound)
    await model.ask(" ".join(f"{key}{number}" for number, key in enumerate(arrivals)))

    asked, queued = Counter(arrivals), Counter(each.request.caller.key for each in model.queue.requests())
    assert queued.total() == min(len(arrivals), bound)
    for key, count in asked.items():
        assert queued[key] >= min(count, bound // len(asked) - 1)
    assert sum(task.done() for task in model.tasks.values()) == max(0, len(arrivals) - bound)
    for name in model.tasks:
        await model.leave(name)
    assert len(model.queue) == 0


# Keep-alives in the queue.


@pytest.mark.parametrize(
    ("lane", "phase", "told"),
    [
        ("standard", "imports", "imports"),
        ("standard", "busy", "busy"),
        ("background", "imports", "imports"),
        ("background", "busy", "background"),
        ("background", "requested", "background"),
        ("background", "rollout_failed", "rollout_failed"),
    ],
)
async def test_a_queued_client_hears_the_present_progress(lane: Lane, phase: str, told: str) -> None:
    model, waits = ColdModel(keep_alive_interval_s=INTERVAL_S), Waits()
    asked = of_lane(lane, tell_wait=waits)
    await model.ask("s1", asked=asked)
    assert waits.told == []  # not before the first interval

    for eta_s in (12.0, 11.0):
        model.progress.current = ColdStartProgress(phase, eta_s, "why", 3)
        model.now += 1.0
        await until(lambda: waits.told and waits.told[-1].waited_s == model.now - 100.0)
    await model.up("a")

    known = (None, "", 0) if told == "background" else (11.0, "why", 3)
    assert waits.told[-1] == ColdWait("tide", told, known[0], 2.0, *known[1:])
    assert (asked.queued_s, model.order) == (2.0, ["s1"])


async def test_short_intervals_leave_others_their_turn() -> None:
    model = ColdModel(keep_alive_interval_s=1e-9)
    await model.ask("s1", asked=request(tell_wait=Waits()))
    for _ in range(20):
        model.now += 1.0
        await asyncio.sleep(0)

    await model.up("a")

    assert model.order == ["s1"]


# At an engine.


class LoadingEngine(StubEngine):
    """Loads an adapter until the test ends the load."""

    def __init__(self, answer: Any) -> None:
        super().__init__(answer)
        self.loaded = asyncio.Event()

    async def _reply(self) -> EngineReply:
        await self.loaded.wait()
        return await super()._reply()


@pytest.fixture
def clock() -> Clock:
    return Clock(0.0)


@pytest.fixture
async def fleet(clock: Clock) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        fleet = Fleet(stack, MODEL, clock)
        fleet.knobs["keep_alive_interval_s"] = INTERVAL_S
        yield fleet


class Client:
    """The client of one stream."""

    def __init__(self, fleet: Fleet, operation: Operation = "chat_completions") -> None:
        self.connection, self.traffic = Connection(), TrafficLog()
        self.asked = request(operation=operation, wants_stream=True)
        response = EngineResponse(fleet.client, self.asked, self.traffic)
        self._task = asyncio.create_task(response(SCOPE, self.connection.receive, self.connection.send))

    async def told(self) -> bytes:
        """The first part of the body."""
        async with asyncio.timeout(LIMIT_S):
            await self.connection.body_arrived.wait()
        return self.connection.body

    async def whole(self) -> bytes:
        async with asyncio.timeout(LIMIT_S):
            await self._task
        return self.connection.body


async def test_silence_counts_from_the_arrival_in_the_queue(fleet: Fleet, clock: Clock) -> None:
    engine, waits = LoadingEngine(frames(FIRST, DONE)), Waits()
    async with reading(fleet, request(wants_stream=True, tell_wait=waits)) as answer:
        await fleet.handle.asked.wait()
        clock.now = 0.75 * INTERVAL_S
        await fleet.start(engine)
        await engine.entered.wait()
        clock.now = INTERVAL_S
        await until(lambda: waits.told)
        engine.loaded.set()
        await answer

    assert waits.told == [ColdWait("tide", "first_token", None, INTERVAL_S)]


async def test_only_background_streams_are_kept_alive_after_output(fleet: Fleet, clock: Clock) -> None:
    engine, waits = CountingEngine(until=1), {"standard": Waits(), "background": Waits()}
    await fleet.start(engine)
    async with AsyncExitStack() as stack:
        lanes: tuple[Lane, ...] = ("standard", "background")
        for lane in lanes:
            asked = of_lane(lane, wants_stream=True, tell_wait=waits[lane])
            await stack.enter_async_context(reading(fleet, asked))
            engine.reached.clear()
            await engine.reached.wait()
        await asyncio.sleep(0)
        for _ in range(3):
            clock.now += 1.0
            count = len(waits["background"].told)
            await until(lambda count=count: len(waits["background"].told) > count)  # type: ignore[misc]

    assert {wait.phase for wait in waits["background"].told} == {"background"}
    assert waits["standard"].told == []


COMMENT = b": waiting for a replica of tide: phase=first_token eta_s=unknown waited_s=7\n\n"
PING = b'event: ping\ndata: {"type":"ping"}\n\n'


@pytest.mark.parametrize(
    ("operation", "event", "end"),
    [
        ("chat_completions", b"", b'"code":"adapter_invalid"}}\n\ndata: [DONE]\n\n'),
        ("messages", PING, b'"request_id":"r-1"}\n\n'),
        ("responses", b"event: response.created\n", b'"code":"invalid_prompt"'),
    ],
)
async def test_error_after_a_keep_alive_is_an_event(
    fleet: Fleet, clock: Clock, operation: Operation, event: bytes, end: bytes
) -> None:
    engine = LoadingEngine(BROKEN)
    await fleet.start(engine)
    client = Client(fleet, operation)
    await engine.entered.wait()
    clock.now = 7.0
    told = await client.told()
    engine.loaded.set()
    body = await client.whole()

    assert told.startswith(COMMENT + event)
    assert (client.connection.status, client.asked.outcome) == (200, "client_error")
    assert b"the adapter cannot be loaded" in body
    assert end in body


async def test_stream_moves_after_a_keep_alive_and_before_output(fleet: Fleet, clock: Clock) -> None:
    mute = MuteEngine()
    plane = await fleet.start(mute)
    client = Client(fleet)
    await mute.entered.wait()
    clock.now = 7.0
    assert await client.told() == COMMENT
    assert client.asked.ttft_s is None
    assert client.traffic.names == ["opened"]

    await fleet.start(StubEngine(frames(FIRST, DONE)))
    await lose(plane)

    assert await client.whole() == COMMENT + FIRST + DONE
    assert client.traffic.names == ["opened", "first_byte", "closed"]
    assert client.asked.outcome == "ok"
