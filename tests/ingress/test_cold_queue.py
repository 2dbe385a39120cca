"""The queue for a cold start, with Ray's handle and the progress reader stubbed."""

import asyncio

import pytest
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import DeploymentUnavailableError

from serve_app.api.engine_client import ColdWait, RequestState
from serve_app.api.errors import ApiError
from serve_app.ingress.cold_start_progress import ColdStartProgress
from tests.ingress.fleet import BODY, MODEL, Queue, StubHandle, Waits, hold, ids, request
from tests.stub_engine import LIMIT_S

UNAVAILABLE = DeploymentUnavailableError(DeploymentID("Engine-tide", "app"))


async def test_a_request_with_a_replica_at_hand_never_yields() -> None:
    queue = Queue()
    queue.up("a")
    tasks = asyncio.all_tasks()
    coroutine = queue.admission.take(request())

    with pytest.raises(StopIteration) as done:
        coroutine.send(None)  # the first step is the last: it never yields to the event loop

    assert done.value.value.replica.replica_id == "a"
    assert queue.held.replicas.in_flight("a") == 1
    assert (queue.handle.chosen, queue.progress.running) == (0, False)
    assert asyncio.all_tasks() == tasks


@pytest.mark.parametrize("grouped", [True, False])
async def test_only_streams_join_prefill_groups_and_none_without_the_knob(grouped: bool) -> None:
    queue = Queue(prefill_groups=grouped)
    queue.up("a")

    slots = [await queue.admission.take(request(wants_stream=stream)) for stream in (True, False)]

    assert [slot.group >= 0 for slot in slots] == [grouped, False]


async def test_a_burst_wakes_ray_once_and_leaves_together() -> None:
    queue = Queue()
    tasks = await queue.held_requests(24)
    await queue.handle.asked.wait()
    assert queue.handle.chosen == 1
    assert queue.progress.running

    queue.up(*"abcdef")

    assert len(queue.held) == 0
    assert sorted(await ids(tasks)) == sorted("abcdef" * 4)
    assert (queue.handle.chosen, queue.cold_starts) == (1, 1)
    assert not queue.progress.running


async def test_requests_leave_in_the_order_they_came() -> None:
    queue = Queue()
    tasks = await queue.held_requests(6)

    queue.up("a")
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert [task.done() for task in tasks] == [True] * 4 + [False] * 2
    queue.held.replicas.release(tasks[0].result())
    assert len(queue.held) == 1
    queue.up("a", "b")
    assert await ids(tasks) == ["a"] * 5 + ["b"]


async def test_a_request_that_lost_its_replica_waits_for_room() -> None:
    queue = Queue()
    queue.up("a")
    first = [await queue.admission.take(request()) for _ in range(4)]

    task = queue.ask(retry=True)
    await asyncio.sleep(0)
    assert len(queue.held) == 1
    assert queue.handle.chosen == 0  # there is a replica: Ray has nothing to start
    queue.held.replicas.release(first[0])

    assert await ids([task]) == ["a"]


async def test_a_full_queue_refuses_with_retry_after() -> None:
    queue = Queue(max_held_requests=3)
    queue.progress.current = ColdStartProgress("imports", 41.2)
    await queue.held_requests(3)

    error = await queue.refusal()

    assert (error.status, error.code, error.headers) == (429, "queue_full", {"Retry-After": "42"})
    assert "'tide'" in error.message
    assert "queues 3 others" in error.message
    assert "max_held_requests = 3" in error.message
    assert len(queue.held) == 3


async def test_a_queued_request_is_refused_at_its_deadline() -> None:
    queue = Queue(cold_wait_timeout_s=0.001)
    queue.progress.current = ColdStartProgress("weights_and_kv_cache", None)

    error = await queue.refusal()

    assert (error.status, error.code, error.headers) == (503, "cold_wait_timeout", {"Retry-After": "30"})
    assert error.message == (
        "Model 'tide': no replica could take the request within 0.001 s (cold_wait_timeout_s = 0.001); "
        "phase: weights_and_kv_cache."
    )
    assert len(queue.held) == 0
    await asyncio.sleep(0)
    assert (queue.handle.asking, queue.progress.running) == (0, False)


async def test_engines_that_cannot_start_fail_the_whole_queue() -> None:
    queue = Queue(StubHandle(refuses=UNAVAILABLE))
    tasks = await queue.held_requests(3)

    async with asyncio.timeout(LIMIT_S):
        errors = await asyncio.gather(*tasks, return_exceptions=True)
    errors.append(await queue.refusal())

    for error in errors:
        assert isinstance(error, ApiError)
        assert (error.status, error.code, error.headers) == (503, "model_unavailable", {"Retry-After": "30"})
        assert "/ready" in error.message
    assert len(queue.held) == 0
    assert queue.handle.chosen == 2


async def test_full_replicas_refuse_at_once() -> None:
    queue = Queue()
    queue.up("a")
    for _ in range(4):
        await queue.admission.take(request())

    error = await queue.refusal()

    assert (error.status, error.code, error.headers) == (429, "queue_full", {"Retry-After": "1"})
    assert "max_ongoing_requests = 4" in error.message
    assert len(queue.held) == 0


async def test_a_client_that_leaves_frees_its_place() -> None:
    queue = Queue()
    first, second = await queue.held_requests(2)
    await queue.handle.asked.wait()

    first.cancel()
    await asyncio.wait((first,))

    assert len(queue.held) == 1
    assert queue.held.body_bytes == len(BODY)
    assert queue.handle.asking == 1  # the other one still needs a replica
    queue.up("a")
    assert await ids([second]) == ["a"]


async def test_a_pause_within_a_stream_is_no_queue_time() -> None:
    now = 0.0
    admission = hold(MODEL, StubHandle(holds=True), clock=lambda: now)
    asked = request()
    for moment, ttft_s in ((3.0, 3.5), (20.0, 3.5)):  # before its first token, and when it was lost later
        taking = asyncio.create_task(admission.take(asked, retry=now > 0.0))
        await asyncio.sleep(0)
        now = moment
        admission.replicas.update({"a": {"address": "a:1", "token": "t"}})
        admission.replicas.release(await taking)
        asked.state.ttft_s = ttft_s
        admission.replicas.update({})

    assert asked.state.queued_s == 3.0


async def test_an_empty_queue_wakes_no_replica() -> None:
    queue = Queue()
    tasks = await queue.held_requests(3)
    await queue.handle.asked.wait()

    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    await asyncio.sleep(0)

    assert len(queue.held) == 0
    assert (queue.handle.chosen, queue.handle.asking) == (1, 0)
    assert not queue.progress.running


async def test_a_client_that_leaves_at_its_release_blocks_no_replica() -> None:
    queue = Queue()
    first, second = await queue.held_requests(2)

    queue.up("a")
    first.cancel()
    await asyncio.wait((first,))

    assert first.cancelled()
    assert await ids([second]) == ["a"]
    assert queue.held.replicas.in_flight("a") == 1


async def test_vanished_replicas_are_asked_for_again() -> None:
    names = iter("ab")
    queue = Queue(StubHandle(on_choose=lambda: queue.up(next(names))))
    tasks = await queue.held_requests(5)
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*tasks[:4])
    assert len(queue.held) == 1

    queue.up()
    assert await ids(tasks[4:]) == ["b"]
    assert queue.handle.chosen == 2


async def test_a_wake_without_a_queue_is_taken_back() -> None:
    """Ray may lose the replica while it reserves a slot there, and would queue for the next one."""
    queue = Queue()
    tasks = await queue.held_requests(1)
    await queue.handle.asked.wait()
    queue.up("a")
    await ids(tasks)
    assert queue.handle.asking == 1

    queue.up()
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert queue.handle.asking == 0


async def test_the_queue_can_be_measured() -> None:
    now = 100.0
    handle = StubHandle(holds=True)
    admission = hold(MODEL, handle, clock=lambda: now)
    held = admission.queue
    assert (len(held), held.body_bytes, held.oldest_s()) == (0, 0, 0.0)
    first = asyncio.create_task(admission.take(request()))
    await asyncio.sleep(0)
    now = 107.0
    second = asyncio.create_task(admission.take(request(body=b"x" * 100)))
    await asyncio.sleep(0)
    now = 110.0

    assert (len(held), held.body_bytes, held.oldest_s()) == (2, 100 + len(BODY), 10.0)
    assert held.newest_s() == 3.0
    first.cancel()
    await asyncio.wait((first,))
    assert (len(held), held.body_bytes, held.oldest_s()) == (1, 100, 3.0)
    second.cancel()
    await asyncio.wait((second,))
    assert (len(held), held.body_bytes, held.oldest_s()) == (0, 0, 0.0)
    assert held.newest_s() == 0.0


async def test_a_queued_client_hears_of_its_wait() -> None:
    queue = Queue(keep_alive_interval_s=0.001)
    queue.progress.current = ColdStartProgress("imports", 12.0)
    waits = Waits()
    asked = request(state=RequestState(tell_wait=waits))
    task = asyncio.create_task(queue.admission.take(asked))

    for phase in ("imports", "warm_up"):
        queue.progress.current = ColdStartProgress(phase, 12.0)
        waits.heard.clear()
        async with asyncio.timeout(LIMIT_S):
            await waits.heard.wait()
    queue.up("a")
    await ids([task])

    assert [(wait.model, wait.eta_s) for wait in waits.told] == [("tide", 12.0)] * len(waits.told)
    assert {wait.phase for wait in waits.told} == {"imports", "warm_up"}
    waited = [wait.waited_s for wait in waits.told]
    assert waited == sorted(waited)
    assert 0.001 <= waited[0] <= waited[-1] <= asked.state.queued_s


async def test_short_waits_send_no_comment() -> None:
    queue = Queue()
    waits = Waits()
    asked = request(state=RequestState(tell_wait=waits))
    task = asyncio.create_task(queue.admission.take(asked))
    await asyncio.sleep(0)

    queue.up("a")
    await ids([task])

    assert waits.told == []
    assert asked.state.queued_s > 0.0


async def test_a_client_that_cannot_be_told_fails_alone() -> None:
    async def broken(wait: ColdWait) -> None:
        raise OSError(32, "pipe")

    queue = Queue(keep_alive_interval_s=0.001)
    other = queue.ask()
    with pytest.raises(OSError, match="pipe"):
        await queue.admission.take(request(state=RequestState(tell_wait=broken)))

    queue.up("a")
    assert await ids([other]) == ["a"]
    assert queue.held.replicas.in_flight("a") == 1


async def test_short_intervals_leave_others_their_turn() -> None:
    queue = Queue(keep_alive_interval_s=1e-9)
    task = asyncio.create_task(queue.admission.take(request(state=RequestState(tell_wait=Waits()))))
    for _ in range(20):
        await asyncio.sleep(0)

    queue.up("a")

    assert await ids([task]) == ["a"]
