"""Admission to a model: reservations at once, the queue for a cold start, and refusals."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import DeploymentUnavailableError

from serve_app.api.dialect import ColdWait
from serve_app.api.engine_client import (
    GPU_OPERATIONS,
    OPERATIONS,
    SPEECH_OPERATIONS,
    EngineRequest,
    Operation,
)
from serve_app.api.errors import ApiError
from serve_app.ingress.cold_start_progress import ColdStartProgress
from serve_app.ingress.replica import Replica, Reservation
from serve_app.settings.caller import Caller, Lane
from tests.ingress.fleet import BODY, MODEL, FakeHandle, FakeProgress, Waits, hold, request
from tests.stub_engine import LIMIT_S

UNAVAILABLE = DeploymentUnavailableError(DeploymentID("Engine-tide", "app"))


class Model:
    """A cold model, requests for it, and a clock that the test moves."""

    def __init__(self, handle: FakeHandle | None = None, **knobs: Any) -> None:
        self.now = 100.0
        self.handle = handle or FakeHandle(holds=True)
        self.progress = FakeProgress()
        self.cold_starts = 0
        self.admission = hold(MODEL, self.handle, self.progress, lambda: self.now, self._on_cold, **knobs)
        self.queue = self.admission.queue

    def _on_cold(self) -> None:
        assert len(self.queue) > 0  # the policy reads this number
        self.cold_starts += 1

    async def ask(self, count: int = 1, **options: Any) -> list[asyncio.Task[Reservation]]:
        """Let requests arrive, and run until they have a reservation or are queued."""
        tasks = [asyncio.create_task(self.admission.take(request(), **options)) for _ in range(count)]
        await asyncio.sleep(0)
        return tasks

    def up(self, *names: str) -> None:
        """Ray lists these replicas."""
        self.admission.replicas.update(
            {name: {"address": f"{name}:1", "token": "t", "identity": ""} for name in names}
        )

    @property
    def replicas(self) -> list[Replica]:
        return list(self.admission.replicas.listed())

    async def refusal(self) -> tuple[int, str | None, str, str]:
        """Return the status, code, message and Retry-After of the refusal of a new request."""
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(ApiError) as caught:
                await self.admission.take(request())
        error = caught.value
        return error.status, error.code, error.message, (error.headers or {})["Retry-After"]


async def ids(tasks: list[asyncio.Task[Reservation]]) -> list[str]:
    async with asyncio.timeout(LIMIT_S):
        return [reservation.replica.replica_id for reservation in await asyncio.gather(*tasks)]


async def end(*tasks: asyncio.Task[Reservation]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


# At once.


async def test_a_request_with_a_replica_at_hand_never_yields() -> None:
    model = Model()
    model.up("a")
    tasks = asyncio.all_tasks()
    coroutine = model.admission.take(request())

    with pytest.raises(StopIteration) as done:
        coroutine.send(None)  # the first step is the last: it never yields to the event loop

    assert done.value.value.replica is model.replicas[0]
    assert (model.replicas[0].in_flight, model.handle.chosen, model.progress.running) == (1, 0, False)
    assert asyncio.all_tasks() == tasks


@pytest.mark.parametrize("grouped", [True, False])
async def test_only_streams_join_prefill_groups_and_none_without_the_knob(grouped: bool) -> None:
    model = Model(prefill_groups=grouped)
    model.up("a")

    taken = [await model.admission.take(request(wants_stream=stream)) for stream in (True, False)]

    assert [reservation.group >= 0 for reservation in taken] == [grouped, False]


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_prompt_is_estimated_from_its_bytes(operation: Operation) -> None:
    model = Model()
    model.up("a")
    asked = request(operation=operation, body=b"x" * 403)

    reservation = await model.admission.take(asked)

    expected = 100 if operation in GPU_OPERATIONS else 0
    # 80 bytes of audio count as one of text.
    assert reservation.pending_prompt_tokens == (1 if operation in SPEECH_OPERATIONS else expected)


async def test_a_query_counts_once_for_each_document() -> None:
    model = Model()
    model.up("a")
    asked = EngineRequest("rerank", b"x" * 400, "r-1", repeated_bytes=3600)

    assert (await model.admission.take(asked)).pending_prompt_tokens == 1000


# The queue. `test_bounded_release.py` has its order and its release.


async def test_a_burst_wakes_ray_once_and_leaves_together() -> None:
    model = Model()
    tasks = await model.ask(24)
    await model.handle.asked.wait()
    assert (model.handle.chosen, model.progress.running) == (1, True)

    model.up(*"abcdef")

    assert len(model.queue) == 0
    assert sorted(await ids(tasks)) == sorted("abcdef" * 4)
    assert (model.handle.chosen, model.cold_starts, model.progress.running) == (1, 1, False)


async def test_a_client_that_leaves_frees_its_place() -> None:
    model = Model()
    first, *others = await model.ask(3)
    await model.handle.asked.wait()

    await end(first)
    assert (len(model.queue), model.queue.body_bytes()) == (2, 2 * len(BODY))
    assert model.handle.asking == 1  # the others still need a replica

    await end(*others)
    await asyncio.sleep(0)
    assert (len(model.queue), model.handle.asking, model.progress.running) == (0, 0, False)


async def test_a_client_that_leaves_at_its_release_blocks_no_replica() -> None:
    model = Model()
    first, second = await model.ask(2)

    model.up("a")
    await end(first)

    assert first.cancelled()
    assert await ids([second]) == ["a"]
    assert model.replicas[0].in_flight == 1


async def test_vanished_replicas_are_asked_for_again() -> None:
    names = iter("ab")
    model = Model(FakeHandle(on_choose=lambda: model.up(next(names))))
    tasks = await model.ask(5)
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*tasks[:4])
    assert len(model.queue) == 1

    model.up()
    assert await ids(tasks[4:]) == ["b"]
    assert model.handle.chosen == 2


async def test_trouble_of_the_last_replica_asks_for_another() -> None:
    model = Model()
    model.up("a")
    for _ in range(MODEL.max_ongoing_requests):
        await model.admission.take(request())
    queued = asyncio.create_task(model.admission.take(request(), retry=True))
    await asyncio.sleep(0)

    model.admission.replicas.keep_away(model.replicas[0], "it has sent no heartbeat for 2 s")

    async with asyncio.timeout(LIMIT_S):
        await model.handle.asked.wait()
    await end(queued)


async def test_a_wake_without_a_queue_is_taken_back() -> None:
    """Ray may lose the replica while it reserves a place there, and would queue for the next one."""
    model = Model()
    tasks = await model.ask()
    await model.handle.asked.wait()
    model.up("a")
    await ids(tasks)
    assert model.handle.asking == 1

    model.up()
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert model.handle.asking == 0


async def test_the_queue_can_be_measured() -> None:
    model = Model()
    queue = model.queue

    def measured() -> tuple[int, int, list[float]]:
        return len(queue), queue.body_bytes(), queue.waits_s()

    first = await model.ask()
    model.now += 7.0
    second = await model.ask(retry=True)
    model.now += 3.0

    assert measured() == (2, 2 * len(BODY), [3.0, 10.0])
    await end(*first)
    assert measured() == (1, len(BODY), [3.0])
    await end(*second)
    assert measured() == (0, 0, [])


async def test_a_pause_within_a_stream_is_no_queue_time() -> None:
    model = Model()
    asked = request()
    for wait_s, ttft_s in ((3.0, 3.5), (17.0, 3.5)):  # before its first token, and after a later loss
        taking = asyncio.create_task(model.admission.take(asked, retry=asked.ttft_s is not None))
        await asyncio.sleep(0)
        model.now += wait_s
        model.up("a")
        model.admission.replicas.release(await taking)
        asked.ttft_s = ttft_s
        model.up()

    assert asked.queued_s == 3.0


async def test_wait_after_a_loss_is_no_wait_for_a_cold_start() -> None:
    model = Model(cold_wait_timeout_s=60.0)
    replicas = model.admission.replicas
    replicas.clock = lambda: model.now
    model.up("a")
    (lost,) = model.replicas
    replicas.keep_away(lost, "its engine has taken no step for 4 s")

    async def waits(seconds: float, retry: bool = False) -> tuple[float, float]:
        asked = request()
        taking = asyncio.create_task(model.admission.take(asked, retry=retry))
        await asyncio.sleep(0)
        model.now += seconds
        model.up("b")
        replicas.release(await taking)
        model.up()  # at zero, by the policy
        return asked.queued_s, asked.lost_s

    model.up()  # Ray replaces it
    assert await waits(35.0) == (0.0, 35.0)
    assert await waits(35.0) == (35.0, 0.0)  # a cold start, because another replica served since the loss
    assert await waits(35.0, retry=True) == (0.0, 35.0)
    model.up("c")
    replicas.keep_away(model.replicas[0], "it has sent no heartbeat for 2 s")
    model.up()
    model.now += 61.0
    assert await waits(35.0) == (35.0, 0.0)  # the loss was too long ago


async def test_wait_at_zero_after_a_loss_is_a_cold_start() -> None:
    """The policy wanted no other replica, because no request came."""
    model = Model()
    model.admission.replicas.clock = lambda: model.now
    model.up("a")
    model.admission.replicas.keep_away(model.replicas[0], "it has sent no heartbeat for 2 s")
    model.up()
    asked = request()

    model.now += 9.0
    taking = asyncio.create_task(model.admission.take(asked))
    await asyncio.sleep(0)
    model.progress.on_requested()
    model.now += 9.0
    model.up("b")
    await taking

    assert (asked.queued_s, asked.lost_s) == (9.0, 0.0)


async def test_a_retry_in_background_waits_for_other_lanes() -> None:
    model = Model()
    asked = request(caller=Caller("", "background"))

    taking = asyncio.create_task(model.admission.take(asked, retry=True))
    await asyncio.sleep(0)
    model.now += 9.0
    model.up("a")
    await taking

    assert (asked.queued_s, asked.lost_s) == (9.0, 0.0)


async def test_a_drained_replica_is_not_lost() -> None:
    model = Model()
    model.up("a")
    (drained,) = model.replicas
    model.up()
    model.admission.replicas.keep_away(drained, "its data plane cannot be reached")
    asked = request()

    taking = asyncio.create_task(model.admission.take(asked))
    await asyncio.sleep(0)
    model.now += 9.0
    model.up("b")
    await taking

    assert (asked.queued_s, asked.lost_s) == (9.0, 0.0)


# The progress that a queued client hears.


async def test_a_queued_client_hears_the_present_progress() -> None:
    model = Model(keep_alive_interval_s=0.001)
    waits = Waits()
    asked = request(tell_wait=waits)
    task = asyncio.create_task(model.admission.take(asked))
    await asyncio.sleep(0)
    assert waits.told == []  # not before the first interval

    for phase in ("imports", "warm_up"):
        model.progress.current = ColdStartProgress(phase, 12.0)
        model.now += 1.0
        waits.heard.clear()
        async with asyncio.timeout(LIMIT_S):
            await waits.heard.wait()
    model.up("a")
    await ids([task])

    assert waits.told == [ColdWait("tide", "imports", 12.0, 1.0), ColdWait("tide", "warm_up", 12.0, 2.0)]
    assert asked.queued_s == 2.0


async def test_a_client_that_cannot_be_told_fails_alone() -> None:
    async def broken(wait: ColdWait) -> None:
        raise OSError(32, "pipe")

    model = Model(keep_alive_interval_s=0.001)
    other = await model.ask()
    failing = asyncio.create_task(model.admission.take(request(tell_wait=broken)))
    await asyncio.sleep(0)
    model.now += 1.0
    with pytest.raises(OSError, match="pipe"):
        await failing

    model.up("a")
    assert await ids(other) == ["a"]
    assert model.replicas[0].in_flight == 1


async def test_short_intervals_leave_others_their_turn() -> None:
    model = Model(keep_alive_interval_s=1e-9)
    task = asyncio.create_task(model.admission.take(request(tell_wait=Waits())))
    for _ in range(20):
        model.now += 1.0
        await asyncio.sleep(0)

    model.up("a")

    assert await ids([task]) == ["a"]


# Refusals.


async def test_a_full_queue_refuses_until_the_eta() -> None:
    model = Model(max_held_requests=3)
    model.progress.current = ColdStartProgress("imports", 41.2)
    tasks = await model.ask(3)

    assert await model.refusal() == (
        429,
        "queue_full",
        "Model 'tide': no replica can take the request yet, and this ingress replica already queues 3 others "
        "(max_held_requests = 3).",
        "42",
    )
    await end(*tasks)


def from_key(key: str, lane: Lane = "standard") -> EngineRequest:
    return request(caller=Caller(key, lane))


async def test_full_queue_refuses_the_newest_of_the_key_with_the_most() -> None:
    model = Model(max_held_requests=6)
    flood = [asyncio.create_task(model.admission.take(from_key("flood"))) for _ in range(6)]
    await asyncio.sleep(0)

    others = [asyncio.create_task(model.admission.take(from_key("other"))) for _ in range(4)]
    await asyncio.wait([*flood[3:], others[3]])

    for refused in (*flood[3:], others[3]):
        error = refused.exception()
        assert isinstance(error, ApiError)
        assert (error.status, error.code) == (429, "queue_full")
    assert len(model.queue) == 6
    model.up("a", "b")
    assert await ids([*flood[:3], *others[:3]])


async def test_background_puts_out_no_request_of_other_lanes() -> None:
    model = Model(max_held_requests=4)
    flood = [asyncio.create_task(model.admission.take(from_key("flood"))) for _ in range(4)]
    batch = [asyncio.create_task(model.admission.take(from_key("batch", "background"))) for _ in range(5)]
    await asyncio.wait(batch[4:])

    other = asyncio.create_task(model.admission.take(from_key("other", "background")))
    await asyncio.wait(batch[3:])

    assert [task.done() for task in (*flood, *batch, other)] == [False] * 7 + [True] * 2 + [False]
    await end(*flood, *batch[:3], other)
    assert all(isinstance(task.exception(), ApiError) for task in batch[3:])


@given(st.lists(st.sampled_from("aaaaabbc"), min_size=1, max_size=60), st.integers(0, 12))
async def test_full_queue_keeps_keys_to_equal_shares(arrivals: list[str], bound: int) -> None:
    model = Model(max_held_requests=bound)
    tasks = [(key, asyncio.create_task(model.admission.take(from_key(key)))) for key in arrivals]
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    asked, queued = Counter(arrivals), Counter(each.request.caller.key for each in model.queue.requests())
    assert queued.total() == min(len(arrivals), bound)
    for key, count in asked.items():
        assert queued[key] >= min(count, bound // len(asked) - 1)
    await asyncio.sleep(0)
    assert sum(task.done() for _, task in tasks) == max(0, len(arrivals) - bound)
    await end(*[task for _, task in tasks])
    assert len(model.queue) == 0


async def test_a_queued_request_is_refused_at_its_deadline() -> None:
    model = Model(cold_wait_timeout_s=0.001)
    model.progress.current = ColdStartProgress("weights_and_kv_cache", None)
    refusal = asyncio.create_task(model.refusal())
    await asyncio.sleep(0)
    model.now += 1.0

    assert await refusal == (
        503,
        "cold_wait_timeout",
        "Model 'tide': no replica could take the request within 0.001 s (cold_wait_timeout_s = 0.001); "
        "phase: weights_and_kv_cache.",
        "30",
    )
    await asyncio.sleep(0)
    assert (len(model.queue), model.handle.asking, model.progress.running) == (0, 0, False)


async def test_engines_that_cannot_start_fail_the_whole_queue() -> None:
    model = Model(FakeHandle(refuses=UNAVAILABLE))
    tasks = await model.ask(3)

    async with asyncio.timeout(LIMIT_S):
        errors = await asyncio.gather(*tasks, return_exceptions=True)

    message = "Model 'tide': its engines cannot start; see /ready."
    assert [str(error) for error in errors] == [message] * 3
    assert await model.refusal() == (503, "model_unavailable", message, "30")
    assert (len(model.queue), model.handle.chosen) == (0, 2)


async def test_failed_rollout_ends_the_wait_of_requests_without_a_replica() -> None:
    model = Model()
    tasks = await model.ask(2)
    batch = asyncio.create_task(model.admission.take(from_key("batch", "background")))
    await asyncio.sleep(0)

    model.progress.on_rollout_failed("the last rollout failed: no such setting")
    errors = await asyncio.gather(*tasks, return_exceptions=True)

    (error, _) = errors
    assert isinstance(error, ApiError)
    assert (error.status, error.code, error.headers["Retry-After"]) == (503, "model_unavailable", "30")
    assert error.message == (
        "Model 'tide': no replica runs, and none can start before the next rollout, because the last rollout "
        "failed: no such setting"
    )
    assert (len(model.queue), model.handle.asking, model.progress.running) == (1, 0, True)
    model.up("a")  # by the next rollout
    assert await ids([batch]) == ["a"]


async def test_failed_rollout_refuses_nothing_beside_a_replica() -> None:
    model = Model()
    model.up("a")
    first, *_ = [await model.admission.take(request()) for _ in range(4)]
    (lost,) = await model.ask(retry=True)

    model.progress.on_rollout_failed("the last rollout failed: no such setting")
    model.admission.replicas.release(first)

    assert await ids([lost]) == ["a"]


async def test_full_replicas_refuse_all_but_a_request_that_lost_its_replica() -> None:
    model = Model()
    model.up("a")
    first, *_ = [await model.admission.take(request()) for _ in range(4)]
    lost = await model.ask(retry=True)

    assert await model.refusal() == (
        429,
        "queue_full",
        "Model 'tide': every replica already has 4 requests from this ingress replica "
        "(max_ongoing_requests = 4).",
        "1",
    )
    assert (len(model.queue), model.handle.chosen) == (1, 0)  # there is a replica: Ray has nothing to start
    model.admission.replicas.release(first)
    assert await ids(lost) == ["a"]
