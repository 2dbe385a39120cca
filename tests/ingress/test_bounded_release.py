"""How those who are held leave for replicas that come up one after the other."""

import asyncio
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.api.engine_client import EngineRequest
from serve_app.api.errors import ApiError
from serve_app.ingress.admission import release_limit
from serve_app.ingress.cold_start_progress import ColdStartProgress
from serve_app.ingress.prefix_index import MOST_PROMPT_TOKENS
from serve_app.ingress.replica import Reservation
from serve_app.settings import ModelSettings
from tests.ingress.fleet import FakeHandle, FakeProgress, Waits, hold
from tests.stub_engine import LIMIT_S

MODEL = ModelSettings(name="tide", max_num_seqs=2, max_ongoing_requests=5)
ROOM = 3
BODY = b'{"model":"tide"}'


def request(**changes: Any) -> EngineRequest:
    return EngineRequest("chat_completions", changes.pop("body", BODY), "r-1", **changes)


async def settle() -> None:
    """Let everybody who can go on do so: from a slot given to its task's end it takes three turns."""
    for _ in range(5):
        await asyncio.sleep(0)


class Hold:
    """A cold model's queue, and requests in it, numbered as they came."""

    def __init__(self, **knobs: Any) -> None:
        self.progress = FakeProgress(ColdStartProgress("imports", 12.0))
        self.admission = hold(MODEL, FakeHandle(holds=True), self.progress, **knobs)
        self.held = self.admission.queue
        self.order: list[int] = []
        """Who got a slot, in the order of getting it."""
        self.slots: dict[int, Reservation] = {}
        self.tasks: list[asyncio.Task[None]] = []

    async def ask(self, count: int = 1, **options: Any) -> None:
        for _ in range(count):
            self.tasks.append(asyncio.create_task(self._one(len(self.tasks), **options)))
            await settle()

    async def _one(self, number: int, **options: Any) -> None:
        self.slots[number] = await self.admission.take(request(), **options)
        self.order.append(number)

    async def up(self, *names: str) -> None:
        self.admission.replicas.update(
            {name: {"address": f"{name}:1", "token": "t", "identity": ""} for name in names}
        )
        await settle()

    async def end(self, number: int) -> None:
        self.admission.replicas.release(self.slots.pop(number))
        await settle()

    @property
    def in_flight(self) -> dict[str, int]:
        return dict(Counter(slot.replica.replica_id for slot in self.slots.values()))


@pytest.mark.parametrize(
    ("max_num_seqs", "max_ongoing_requests", "room"),
    [(1, 1000, 2), (2, 1000, 3), (64, 1000, 72), (256, 1000, 288), (1000, 1000, 1000), (64, 24, 24)],
)
def test_release_limit_is_nine_eighths_of_the_batch(
    max_num_seqs: int, max_ongoing_requests: int, room: int
) -> None:
    model = MODEL.model_copy(
        update={"max_num_seqs": max_num_seqs, "max_ongoing_requests": max_ongoing_requests}
    )

    assert release_limit(model) == room


async def test_burst_spreads_over_replicas_as_they_start() -> None:
    burst = Hold()
    await burst.ask(10)

    await burst.up("a")
    assert (burst.in_flight, len(burst.held)) == ({"a": ROOM}, 10 - ROOM)
    await burst.up("a", "b")
    assert (burst.in_flight, len(burst.held)) == ({"a": ROOM, "b": ROOM}, 10 - 2 * ROOM)
    await burst.up("a", "b", "c")
    assert (burst.in_flight, len(burst.held)) == ({"a": ROOM, "b": ROOM, "c": ROOM}, 1)

    await burst.end(0)
    assert len(burst.held) == 0
    assert burst.order == list(range(10))


async def test_burst_passes_a_single_replica_in_order() -> None:
    burst = Hold()
    await burst.ask(8)
    await burst.up("a")

    for number in range(8):
        assert burst.in_flight["a"] == min(ROOM, 8 - number)
        await burst.end(number)

    assert burst.order == list(range(8))
    assert len(burst.held) == 0


@pytest.mark.parametrize(("max_model_len", "tokens"), [(64, 64), (None, MOST_PROMPT_TOKENS)])
async def test_no_prompt_weighs_more_than_the_context_length(max_model_len: int | None, tokens: int) -> None:
    model = MODEL.model_copy(update={"max_model_len": max_model_len})
    admission = hold(model, FakeHandle(holds=True))
    admission.replicas.update({"a": {"address": "a:1", "token": "t", "identity": ""}})

    slot = await admission.take(request(body=b"x" * (1 << 20)))

    assert slot.pending_prompt_tokens == tokens


async def test_newcomers_join_the_end_until_nobody_is_held() -> None:
    burst = Hold()
    await burst.ask(4)
    await burst.up("a")
    await burst.ask(2)  # 4 and 5

    assert (burst.order, len(burst.held)) == ([0, 1, 2], 3)
    for number in range(3):
        await burst.end(number)
    assert (burst.order, len(burst.held)) == ([0, 1, 2, 3, 4, 5], 0)

    await burst.ask(2)  # nobody is held: as many as a replica may have, and at once
    assert burst.in_flight == {"a": 5}
    with pytest.raises(ApiError, match="max_ongoing_requests = 5"):
        await burst.admission.take(request())


async def test_newcomers_count_towards_those_that_may_be_held() -> None:
    burst = Hold(max_held_requests=4)
    await burst.ask(4)
    await burst.up("a")
    assert len(burst.held) == 1
    await burst.ask(3)
    burst.progress.current = ColdStartProgress("busy", None)

    with pytest.raises(ApiError) as caught:
        await burst.admission.take(request())

    error = caught.value
    assert (error.status, error.code, error.headers) == (429, "queue_full", {"Retry-After": "30"})
    assert "max_held_requests = 4" in error.message


async def test_request_that_lost_a_replica_goes_first_unrefused() -> None:
    burst = Hold(max_held_requests=4)
    await burst.ask(4)
    await burst.up("a")
    await burst.ask(3)
    await burst.ask(retry=True)  # 7
    assert len(burst.held) == 5

    await burst.end(0)
    await burst.end(1)

    assert burst.order == [0, 1, 2, 7, 3]


async def test_dead_replica_delays_requests_but_blocks_none() -> None:
    burst = Hold()
    await burst.ask(8)
    await burst.up("a", "b")
    assert burst.in_flight == {"a": ROOM, "b": ROOM}

    lost = [number for number, slot in burst.slots.items() if slot.replica.replica_id == "a"]
    await burst.up("b")
    for number in lost:
        await burst.end(number)
    await burst.ask(ROOM, retry=True)  # 8, 9 and 10
    assert (burst.in_flight, len(burst.held)) == ({"b": ROOM}, 5)
    await burst.up("b", "c")

    assert burst.order[6:] == [8, 9, 10]
    assert burst.in_flight == {"b": ROOM, "c": ROOM}
    for number in [*burst.slots]:
        await burst.end(number)
    assert burst.order[9:] == [6, 7]


async def test_reachable_replica_gets_queued_requests_at_once() -> None:
    burst = Hold()
    await burst.ask(9)
    await burst.up("a", "b")
    on_a = [number for number, slot in burst.slots.items() if slot.replica.replica_id == "a"]
    a = burst.slots[on_a[0]].replica
    a.failures = 1
    for number in on_a[:2]:
        await burst.end(number)
    assert len(burst.held) == 3  # not there, where they might be lost

    burst.admission.replicas.note_first_byte(burst.slots[on_a[2]])
    await settle()

    assert (burst.in_flight, len(burst.held)) == ({"a": ROOM, "b": ROOM}, 1)


async def test_warm_model_queues_only_a_request_that_lost_its_replica() -> None:
    """It waits for the next slot that a replica may give, not for one in a batch; others are refused."""
    warm = Hold()
    await warm.up("a")
    await warm.ask(5)
    await warm.ask(retry=True)  # 5
    assert len(warm.held) == 1
    with pytest.raises(ApiError, match="max_ongoing_requests = 5"):
        await warm.admission.take(request())

    await warm.end(0)

    assert warm.order == [0, 1, 2, 3, 4, 5]
    assert warm.in_flight == {"a": 5}


async def test_model_is_cold_after_its_last_replica_goes() -> None:
    warm = Hold()
    await warm.up("a")
    await warm.ask(5)
    await warm.ask(4, retry=True)

    await warm.up()
    await warm.up("b")

    assert warm.in_flight == {"a": 5, "b": ROOM}


async def test_those_who_stay_are_told_what_they_wait_for_now() -> None:
    burst = Hold(keep_alive_interval_s=0.001)
    await burst.ask(3)
    waits = Waits()
    asked = request(tell_wait=waits)
    told = asyncio.create_task(burst.admission.take(asked))
    await settle()
    await burst.up("a")
    burst.progress.current = ColdStartProgress("warm_up", 3.0)

    waits.heard.clear()
    async with asyncio.timeout(LIMIT_S):
        while not waits.told or waits.told[-1].phase != "warm_up":
            await waits.heard.wait()
            waits.heard.clear()
    await burst.end(0)
    async with asyncio.timeout(LIMIT_S):
        burst.admission.replicas.release(await told)

    assert burst.progress.running is False
    assert asked.queued_s > 0.0


async def test_those_who_stay_have_their_deadline_from_their_arrival() -> None:
    late_s = 0.0
    admission = hold(
        MODEL,
        FakeHandle(holds=True),
        FakeProgress(ColdStartProgress("busy", None)),
        lambda: time.perf_counter() + late_s,
        keep_alive_interval_s=0.001,
        cold_wait_timeout_s=600,
    )
    asked = [asyncio.create_task(admission.take(request())) for _ in range(ROOM + 1)]
    await settle()
    late_s = 300.0
    admission.replicas.update({"a": {"address": "a:1", "token": "t", "identity": ""}})
    await settle()
    assert len(admission.queue) == 1

    late_s = 600.0
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(ApiError) as caught:
            await asked[-1]

    error = caught.value
    assert (error.status, error.code, error.headers) == (503, "cold_wait_timeout", {"Retry-After": "30"})
    assert "phase: busy" in error.message
    assert len(admission.queue) == 0


class Fleet(Hold):
    """A hold under whatever happens; checks after every event what must always be so."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.newcomers: list[int] = []

    async def happen(self, event: str, pick: int) -> None:
        here = sorted(self.slots)
        if event == "ask":
            self.newcomers.append(len(self.tasks))
            await self.ask()
        elif event == "start":
            self.names = self.names | {"abc"[pick % 3]}
            await self.up(*sorted(self.names))
        elif event == "stop" and self.names:  # drains: leaves the list, and its requests run on
            self.names = self.names - {sorted(self.names)[pick % len(self.names)]}
            await self.up(*sorted(self.names))
        elif event == "leave" and self.tasks:
            self.tasks[pick % len(self.tasks)].cancel()
            await settle()
        elif here:
            number = here[pick % len(here)]
            slot = self.slots[number]
            if event == "answer":
                self.admission.replicas.note_first_byte(slot)
                await settle()
            elif event == "end":
                await self.end(number)
            elif event == "unreachable":
                slot.replica.failures += 1
                await self.end(number)
                await self.ask(retry=True)

    def check(self) -> None:
        usable = [replica for replica in self.admission.replicas.listed() if not replica.trouble]
        running = Counter(id(slot.replica) for slot in self.slots.values())
        for replica in usable:
            assert replica.in_flight == running[id(replica)]
            assert replica.load >= 0
        waiting = sum(not task.done() for task in self.tasks)
        assert waiting == len(self.held)
        assert self.held.body_bytes() == len(BODY) * len(self.held)
        if waiting and usable:  # nobody waits while there is room
            least = min(replica.failures for replica in usable)
            room = ROOM if self.admission.cold else MODEL.max_ongoing_requests
            assert all(replica.in_flight >= room for replica in usable if replica.failures == least)
        placed = [number for number in self.order if number in self.newcomers]
        assert placed == sorted(placed)

    async def serve_all(self) -> None:
        """One replica that works is enough for everybody."""
        await self.up("d")
        for _ in range(len(self.tasks) + 1):
            for number in sorted(self.slots):
                await self.end(number)
            self.check()
        assert len(self.held) == 0
        assert not self.slots
        assert all(task.done() for task in self.tasks)


EVENTS = st.sampled_from(
    ["ask", "ask", "ask", "ask", "start", "stop", "leave", "answer", "end", "end", "unreachable"]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(EVENTS, st.integers(0, 1000)), max_size=60))
def test_any_sequence_keeps_order_fills_room_and_forgets_nobody(
    events: list[tuple[str, int]],
) -> None:
    async def scenario() -> None:
        fleet = Fleet()
        for event, pick in events:
            await fleet.happen(event, pick)
            fleet.check()
        await fleet.serve_all()
        for task in fleet.tasks:
            if not task.cancelled() and task.exception() is not None:
                assert isinstance(task.exception(), ApiError)

    asyncio.run(scenario())
