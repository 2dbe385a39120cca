"""Lanes in the ingress: the order of the queue, and background requests in free places only."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import pytest

from serve_app.api.engine_client import EngineReply, EngineRequest
from serve_app.api.errors import ApiError
from serve_app.ingress.cold_start_progress import ColdStartProgress
from serve_app.ingress.replica import Reservation
from serve_app.settings import ModelSettings
from serve_app.settings.caller import Caller, Lane
from serve_app.wire.data_plane import TokenCounts
from tests.ingress.fleet import WHOLE, CountingEngine, FakeHandle, FakeProgress, Fleet, Waits, hold, reading
from tests.stub_engine import LIMIT_S

MODEL = ModelSettings(name="tide", max_num_seqs=2, max_ongoing_requests=5)
PLACES = 3
"""A batch of two, and an eighth more."""
LIMIT = 5


def request(lane: Lane, key: str = "", **changes: Any) -> EngineRequest:
    return EngineRequest(
        "chat_completions", changes.pop("body", b"x" * 400), "r-1", caller=Caller(key, lane), **changes
    )


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


class Ingress:
    """One model's admission, and named requests. `order` has the names of those released, in order."""

    def __init__(self, **knobs: Any) -> None:
        self.now = 0.0
        self.handle = FakeHandle(holds=True)
        self.progress = FakeProgress()
        self.cold_starts = 0
        self.admission = hold(MODEL, self.handle, self.progress, lambda: self.now, self._on_cold, **knobs)
        self.queue = self.admission.queue
        self.order: list[str] = []
        self.slots: dict[str, Reservation] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def _on_cold(self) -> None:
        self.cold_starts += 1

    async def ask(
        self, names: str, lane: Lane = "standard", asked: EngineRequest | None = None, **options: Any
    ) -> None:
        """Let requests arrive, with the key of their name's first letter."""
        for name in names.split():
            one = asked or request(lane, name[0])
            self.tasks[name] = asyncio.create_task(self._one(name, one, options))
            await settle()

    async def _one(self, name: str, asked: EngineRequest, options: dict[str, Any]) -> None:
        self.slots[name] = await self.admission.take(asked, **options)
        self.order.append(name)

    async def up(self, *names: str) -> None:
        self.admission.replicas.update(
            {name: {"address": f"{name}:1", "token": "t", "identity": ""} for name in names}
        )
        await settle()

    async def end(self, *names: str) -> None:
        for name in names:
            self.admission.replicas.release(self.slots.pop(name))
            await settle()

    async def refusal(self, lane: Lane, key: str = "s") -> ApiError:
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(ApiError) as caught:
                await self.admission.take(request(lane, key))
        return caught.value

    @property
    def in_flight(self) -> dict[str, int]:
        return dict(Counter(slot.replica.replica_id for slot in self.slots.values()))


# The order of a cold start.


async def test_cold_start_releases_lanes_in_order() -> None:
    ingress = Ingress(standard_share=0)
    await ingress.ask("b1", "background")
    await ingress.ask("s1 s2", "standard")
    await ingress.ask("i1 i2", "interactive")
    await ingress.ask("r1", "standard", retry=True)
    await ingress.up("a")
    await ingress.end("r1", "i1", "i2", "s1", "s2")

    assert ingress.order == ["r1", "i1", "i2", "s1", "s2", "b1"]


async def test_cold_start_shares_places_between_keys() -> None:
    ingress = Ingress()
    await ingress.ask("a1 a2 a3 a4 a5 b1 b2")
    await ingress.up("x", "y")

    assert ingress.order == ["a1", "b1", "a2", "b2", "a3", "a4"]


async def test_true_tokens_replace_the_estimate_of_a_key() -> None:
    """All prompts have 100 tokens. The answers of `a` have 1,000, and the prompts of `b` are cached."""
    ingress = Ingress()
    for name in ("a1", "a2", "b1", "b2", "a3", "a4", "a5", "b3", "b4", "b5"):
        await ingress.ask(name, asked=request("standard", name[0]))
    await ingress.up("x")
    assert ingress.order == ["a1", "b1", "a2"]

    for name, cached, output in (("a1", 0, 1000), ("b1", 99, 1)):
        asked = request("standard", name[0], charged_tokens=100, counts=TokenCounts(cached, 100, 100, output))
        ingress.admission.settle(asked)
    await ingress.end("a1", "b1", "a2", "b2")

    assert ingress.order[3:] == ["b2", "b3", "b4", "b5"]


@pytest.mark.parametrize(
    ("others", "order"), [("b1 b2 b3", "b1 b2 b3"), ("b1 c1 b2 d1 b3", "b1 c1 d1 b2 b3")]
)
async def test_full_replicas_keep_no_key_out(others: str, order: str) -> None:
    """One key has all places. Each other key gets the next places, up to its equal share."""
    ingress = Ingress()
    await ingress.up("x")
    flood = ["a1", "a2", "a3", "a4", "a5"]
    await ingress.ask(" ".join(flood))
    assert ingress.order == flood
    assert "max_ongoing_requests = 5" in (await ingress.refusal("standard", "a")).message

    await ingress.ask(others, "interactive")
    await ingress.end("a1")
    for key in "ab":
        assert (await ingress.refusal("interactive", key)).code == "queue_full"
    await ingress.end(*flood[1 : len(others.split())])

    assert ingress.order == [*flood, *order.split()]
    assert (len(ingress.queue), ingress.in_flight, ingress.handle.chosen) == (0, {"x": LIMIT}, 0)


async def test_key_alone_may_use_all_places_again() -> None:
    ingress = Ingress()
    await ingress.up("x")
    await ingress.ask("b1", "interactive")
    await ingress.end("b1")
    await ingress.ask("a1 a2 a3 a4 a5")

    assert ingress.in_flight == {"x": LIMIT}
    assert (await ingress.refusal("standard", "a")).code == "queue_full"


# Background requests.


async def test_background_takes_only_free_places_of_a_batch() -> None:
    ingress = Ingress()
    await ingress.up("x", "y")
    await ingress.ask("s1 s2")
    await ingress.ask("b1 b2 b3 b4 b5 b6", "background")

    assert (ingress.in_flight, ingress.queue.background) == ({"x": PLACES, "y": PLACES}, 2)
    await ingress.end("s1")
    assert (ingress.in_flight, ingress.queue.background) == ({"x": PLACES, "y": PLACES}, 1)


async def test_background_in_flight_refuses_no_other_request() -> None:
    ingress = Ingress()
    await ingress.up("x")
    await ingress.ask("b1 b2 b3 b4", "background")
    await ingress.ask("s1 s2 s3 s4 s5")

    assert ingress.in_flight == {"x": PLACES + LIMIT}
    assert "max_ongoing_requests = 5" in (await ingress.refusal("interactive")).message
    await ingress.end("b1", "b2", "b3", "s1", "s2")
    assert ingress.queue.background == 1  # three others leave no place in the batch
    await ingress.end("s3")
    assert ingress.queue.background == 0


async def test_background_in_flight_keeps_no_stream_from_its_replica() -> None:
    """Its prompts delay nobody for more than a step. But of two equal replicas, the emptier one is picked."""
    ingress = Ingress()
    await ingress.up("x", "y")
    await ingress.ask("b1 b2 b3", "background")
    assert ingress.in_flight == {"x": 2, "y": 1}

    await ingress.ask("s1", "interactive")
    assert ingress.slots["s1"].replica.replica_id == "y"
    await ingress.ask("s2", "interactive")
    assert ingress.slots["s2"].replica.replica_id == "x"


async def test_background_waits_while_another_lane_waits() -> None:
    ingress = Ingress()
    await ingress.ask("b1", "background")
    await ingress.ask("s1 s2 s3 s4")
    await ingress.up("x")

    assert ingress.order == ["s1", "s2", "s3"]
    await ingress.end("s1")
    assert ingress.order[3:] == ["s4"]
    await ingress.end("s2")
    assert ingress.order[4:] == ["b1"]


async def test_other_lanes_pass_a_queue_of_background_requests() -> None:
    ingress = Ingress()
    await ingress.up("x")
    await ingress.ask("b1 b2 b3 b4 b5", "background")

    await ingress.ask("s1 s2", "standard")

    assert ingress.order == ["b1", "b2", "b3", "s1", "s2"]


async def test_background_wakes_no_model() -> None:
    ingress = Ingress()
    await ingress.ask("b1 b2", "background")

    assert (ingress.handle.chosen, ingress.cold_starts, ingress.admission.cold) == (0, 0, False)
    await ingress.ask("s1")
    assert (ingress.handle.chosen, ingress.cold_starts, ingress.admission.cold) == (1, 1, True)
    await ingress.up("x")
    assert (ingress.order, ingress.admission.cold) == (["s1", "b1", "b2"], False)


async def test_wake_ends_when_only_background_requests_are_left() -> None:
    ingress = Ingress()
    await ingress.ask("b1", "background")
    await ingress.ask("s1")
    assert ingress.handle.asking == 1

    ingress.tasks["s1"].cancel()
    await settle()

    assert (ingress.handle.asking, ingress.queue.background) == (0, 1)


async def test_background_flood_fills_a_bound_of_its_own() -> None:
    ingress = Ingress(max_held_requests=2)
    await ingress.ask("b1 c1", "background")
    await ingress.ask("s1 t1")

    error = await ingress.refusal("background")
    assert (error.status, error.code) == (429, "queue_full")
    assert "queues 2 others of the lane background (max_held_requests = 2)" in error.message
    error = await ingress.refusal("standard")
    assert "queues 2 others (max_held_requests = 2)" in error.message


async def test_background_request_is_refused_at_its_own_deadline() -> None:
    ingress = Ingress(cold_wait_timeout_s=0.001, background_wait_timeout_s=3600, keep_alive_interval_s=0.001)
    refusal = asyncio.create_task(ingress.refusal("background"))
    await settle()
    ingress.now = 3599.0
    await settle()
    assert ingress.queue.background == 1

    ingress.now = 3600.0
    error = await refusal

    assert (error.status, error.code) == (503, "background_wait_timeout")
    assert "within 3600 s (background_wait_timeout_s = 3600); phase: background." in error.message


async def test_background_request_learns_of_a_failed_rollout() -> None:
    ingress = Ingress(background_wait_timeout_s=3600, keep_alive_interval_s=0.001)
    ingress.progress.current = ColdStartProgress("rollout_failed", None, "the last rollout failed: no model")
    waits = Waits()
    task = asyncio.create_task(ingress.admission.take(request("background", tell_wait=waits)))
    await settle()

    ingress.now = 1.0
    async with asyncio.timeout(LIMIT_S):
        await waits.heard.wait()
    ingress.now = 3600.0
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(ApiError, match=r"rollout_failed \(the last rollout failed: no model\)\."):
            await task

    assert waits.told[0].reason == "the last rollout failed: no model"


@pytest.mark.parametrize(
    ("phase", "told"), [("busy", "background"), ("requested", "background"), ("imports", "imports")]
)
async def test_waiting_background_stream_is_kept_alive(phase: str, told: str) -> None:
    ingress = Ingress(keep_alive_interval_s=0.001)
    ingress.progress.current = ColdStartProgress(phase, None)
    waits = Waits()
    await ingress.ask("b1", asked=request("background", tell_wait=waits))

    ingress.now = 1.0
    async with asyncio.timeout(LIMIT_S):
        await waits.heard.wait()

    assert waits.told[0].phase == told
    ingress.tasks["b1"].cancel()
    await settle()
    assert ingress.progress.running is False


async def test_background_request_that_lost_its_replica_blocks_nobody() -> None:
    ingress = Ingress()
    await ingress.ask("s1 s2 s3 s4")
    await ingress.ask("b1", "background", retry=True)
    await ingress.up("x")
    assert ingress.order == ["b1", "s1", "s2", "s3"]

    await ingress.ask("b2", "background", retry=True)
    await ingress.end("s1")

    assert ingress.order[4:] == ["s4"]
    await ingress.end("s2", "s3")
    assert ingress.order[5:] == ["b2"]


@pytest.mark.parametrize(
    ("lane", "knob"), [("background", 0.8 * 0.05), ("standard", 0.3), ("interactive", None)]
)
async def test_call_brings_the_knob_of_its_lane(lane: Lane, knob: float | None) -> None:
    async with AsyncExitStack() as stack:
        fleet = Fleet(stack, MODEL)
        fleet.knobs |= {"itl_target_s": 0.05, "standard_share": 0.3}
        engine = CountingEngine()
        await fleet.start(engine)
        async with asyncio.timeout(LIMIT_S), fleet.client.call(request(lane)):
            pass

    assert [asked.message.lane_knob for asked in engine.requests] == [knob]


class BusyEngine(CountingEngine):
    """Never begins an answer: other lanes need all of it."""

    async def _reply(self) -> EngineReply:
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize("wants_stream", [True, False])
async def test_background_request_in_an_engine_has_a_deadline(wants_stream: bool) -> None:
    async with AsyncExitStack() as stack:
        fleet = Fleet(stack, MODEL)
        fleet.knobs["background_wait_timeout_s"] = 0.1
        await fleet.start(BusyEngine())
        asked = request("background", wants_stream=wants_stream)
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(ApiError, match=r"background_wait_timeout_s = 0\.1") as refused:
                async with fleet.client.call(asked):
                    pass

        assert (refused.value.status, refused.value.code) == (503, "background_wait_timeout")
        (replica,) = fleet.replicas
        assert replica.all_in_flight == 0


async def told(waits: Waits, times: int) -> set[str]:
    """The phases that a silent client was told, once it was told so many times."""
    while len(waits.told) < times:
        waits.heard.clear()
        await waits.heard.wait()
    return {wait.phase for wait in waits.told}


async def test_streams_of_each_lane_are_kept_alive_before_output() -> None:
    async with AsyncExitStack() as stack:
        fleet = Fleet(stack, MODEL)
        fleet.knobs["keep_alive_interval_s"] = 0.001
        await fleet.start(BusyEngine())
        for lane, phase in (("standard", "first_token"), ("background", "background")):
            waits = Waits()
            asked = request(lane, wants_stream=True, tell_wait=waits)
            await stack.enter_async_context(reading(fleet, asked))
            assert await told(waits, 3) == {phase}


async def test_only_background_streams_are_kept_alive_after_output() -> None:
    async with AsyncExitStack() as stack:
        fleet, engine, other, waits = Fleet(stack, MODEL), CountingEngine(until=1), Waits(), Waits()
        await fleet.start(engine)
        asked = request("standard", wants_stream=True, tell_wait=other)
        reply = await stack.enter_async_context(fleet.client.call(asked))
        assert reply.stream is not None
        await anext(reply.stream)
        fleet.knobs["keep_alive_interval_s"] = 0.001
        engine.more.release()
        await anext(reply.stream)
        rest = asyncio.ensure_future(anext(reply.stream))

        asked = request("background", wants_stream=True, tell_wait=waits)
        await stack.enter_async_context(reading(fleet, asked))

        assert await told(waits, 3) == {"background"}
        assert other.told == []
        engine.more.release()
        engine.more.release()
        await rest


async def test_whole_flood_passes_one_replica_beside_other_requests() -> None:
    """Over the real relay and data plane. The answers' true tokens are charged at their end."""
    async with AsyncExitStack() as stack:
        fleet = Fleet(stack, MODEL)
        flood = [request("background", "batch", wants_stream=True) for _ in range(12)]
        others = [request("interactive", "chat", wants_stream=True) for _ in range(4)]

        async def answer(asked: EngineRequest) -> bytes:
            async with fleet.client.call(asked) as reply:
                assert reply.stream is not None
                return b"".join([chunk async for chunk in reply.stream])

        tasks = [asyncio.create_task(answer(asked)) for asked in (*flood, *others)]
        await settle()
        assert (fleet.admission.queue.background, fleet.admission.queue.foreground) == (12, 4)
        await fleet.start(CountingEngine())

        async with asyncio.timeout(LIMIT_S):
            assert await asyncio.gather(*tasks) == [WHOLE] * 16

        assert len(fleet.admission.queue) == 0
        assert all(asked.queued_s > 0 for asked in flood[3:])
        assert all(asked.charged_tokens is None for asked in (*flood, *others))
        (replica,) = fleet.replicas
        assert (replica.all_in_flight, replica.load, replica.background_load) == (0, 0, 0)
