"""The queue in front of a model without a replica, with Ray's handle and the clockwork around it stubbed."""

import asyncio

import pytest
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from serve_app.api.errors import ApiError
from serve_app.ingress import replica_set as replicas
from serve_app.ingress.cold_queue import QueuedRequest, WaitingLine
from serve_app.ingress.cold_start_progress import ColdStartProgress
from serve_app.settings.knobs import Knobs
from tests.ingress.holding import BODY, MODEL, Queue, hold, ids, request
from tests.ingress.stub_handle import StubHandle
from tests.stub_engine import LIMIT_S

UNAVAILABLE = DeploymentUnavailableError(DeploymentID("Engine-tide", "app"))


@pytest.fixture(autouse=True)
def _own_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "_sets", {})


async def test_with_a_replica_at_hand_nothing_is_held_and_nobody_asked() -> None:
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


async def test_a_burst_asks_ray_once_and_leaves_together_when_a_replica_is_there() -> None:
    queue = Queue()
    tasks = await queue.held_requests(24)
    await queue.handle.asked.wait()
    assert queue.handle.chosen == 1
    assert queue.progress.running

    queue.up(*"abcdef")

    assert len(queue.held) == 0
    assert sorted(await ids(tasks)) == sorted("abcdef" * 4)
    assert queue.handle.chosen == 1
    assert not queue.progress.running


async def test_a_burst_without_a_replica_is_told_of_at_its_first_request_and_not_again() -> None:
    queue = Queue()
    first = await queue.held_requests(3)
    assert queue.cold_starts == 1

    queue.up("a")
    await ids(first)
    assert queue.cold_starts == 1

    for task in first:
        queue.held.replicas.release(task.result())
    queue.held.replicas.update({})
    queue.ask()
    await asyncio.sleep(0)
    assert queue.cold_starts == 2


async def test_requests_that_wait_for_room_are_told_of_once_the_last_replica_is_gone() -> None:
    queue = Queue()
    queue.up("a")
    for _ in range(4):
        await queue.admission.take(request())
    queue.ask(again=True)
    await asyncio.sleep(0)
    assert queue.cold_starts == 0

    queue.held.replicas.update({})

    assert queue.cold_starts == 1


async def test_those_who_came_first_go_first() -> None:
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


async def test_a_request_that_has_lost_its_replica_waits_for_room_too() -> None:
    queue = Queue()
    queue.up("a")
    first = [await queue.admission.take(request()) for _ in range(4)]

    task = queue.ask(again=True)
    await asyncio.sleep(0)
    assert len(queue.held) == 1
    assert queue.handle.chosen == 0  # there is a replica: Ray has nothing to start
    queue.held.replicas.release(first[0])

    assert await ids([task]) == ["a"]


async def test_more_requests_than_may_be_held_are_refused_with_when_to_come_back() -> None:
    queue = Queue(max_held_requests=3)
    queue.progress.current = ColdStartProgress("imports", 41.2)
    await queue.held_requests(3)

    error = await queue.refusal()

    assert (error.status, error.code, error.headers) == (429, "queue_full", {"Retry-After": "42"})
    assert "'tide'" in error.message
    assert "holds 3 others" in error.message
    assert "max_held_requests = 3" in error.message
    assert len(queue.held) == 3


async def test_the_bound_is_the_knob_as_it_is_now() -> None:
    handle = StubHandle(holds=True)
    admission = hold(MODEL, handle, max_held_requests=0)
    held = admission.queue
    with pytest.raises(ApiError, match="max_held_requests = 0"):
        await admission.take(request())
    assert handle.chosen == 0

    held._knobs = lambda: Knobs(max_held_requests=1)
    task = asyncio.create_task(admission.take(request()))
    await asyncio.sleep(0)
    assert len(held) == 1
    task.cancel()


async def test_a_request_is_held_until_its_deadline_and_no_longer() -> None:
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


async def test_those_held_for_room_have_the_same_deadline() -> None:
    queue = Queue(cold_wait_timeout_s=0.001)
    queue.up("a")
    for _ in range(4):
        await queue.admission.take(request())

    assert (await queue.refusal(again=True)).code == "cold_wait_timeout"


async def test_engines_that_cannot_start_fail_all_that_are_held_and_the_next_one() -> None:
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


async def test_with_all_replicas_full_and_nobody_held_a_request_is_refused_at_once() -> None:
    queue = Queue()
    queue.up("a")
    for _ in range(4):
        await queue.admission.take(request())

    error = await queue.refusal()

    assert (error.status, error.code, error.headers) == (429, "queue_full", {"Retry-After": "1"})
    assert "max_ongoing_requests = 4" in error.message
    assert len(queue.held) == 0


async def test_a_full_queue_of_rays_hangs_nobody() -> None:
    queue = Queue(StubHandle(refuses=BackPressureError(3, 2)))
    tasks = await queue.held_requests(2)
    await queue.handle.asked.wait()

    queue.up("a")

    assert await ids(tasks) == ["a", "a"]


async def test_a_client_that_leaves_leaves_the_queue() -> None:
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


async def test_a_pause_within_a_stream_is_no_part_of_its_cold_wait() -> None:
    now = 0.0
    admission = hold(MODEL, StubHandle(holds=True), clock=lambda: now)
    asked = request()
    for moment, ttft_s in ((3.0, 3.5), (20.0, 3.5)):  # before its first token, and when it was lost later
        taking = asyncio.create_task(admission.take(asked, again=now > 0.0))
        await asyncio.sleep(0)
        now = moment
        admission.replicas.update({"a": {"address": "a:1", "token": "t"}})
        admission.replicas.release(await taking)
        asked.state.ttft_s = ttft_s
        admission.replicas.update({})

    assert asked.state.queued_s == 3.0


async def test_when_the_last_client_has_left_no_gpu_is_woken_for_nobody() -> None:
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


async def test_a_client_that_leaves_at_the_moment_of_its_release_blocks_no_replica() -> None:
    queue = Queue()
    first, second = await queue.held_requests(2)

    queue.up("a")
    first.cancel()
    await asyncio.wait((first,))

    assert first.cancelled()
    assert await ids([second]) == ["a"]
    assert queue.held.replicas.in_flight("a") == 1


async def test_replicas_that_vanish_are_asked_for_again_by_those_still_held() -> None:
    names = iter("ab")
    queue = Queue(StubHandle(on_choose=lambda: queue.up(next(names))))
    tasks = await queue.held_requests(5)
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(*tasks[:4])
    assert len(queue.held) == 1

    queue.up()
    assert await ids(tasks[4:]) == ["b"]
    assert queue.handle.chosen == 2


async def test_a_question_outlived_by_its_replica_and_by_everybody_held_is_taken_back() -> None:
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


async def test_the_request_held_longest_need_not_be_the_first_to_leave() -> None:
    now = 100.0
    admission = hold(MODEL, StubHandle(holds=True), clock=lambda: now)
    held = admission.queue
    tasks = []
    for again in (False, True):
        tasks.append(asyncio.create_task(admission.take(request(), again=again)))
        await asyncio.sleep(0)
        now += 5.0

    assert held.oldest_s() == 10.0
    held.replicas.update({"a": {"address": "a:1", "token": "t"}})
    assert await ids(tasks) == ["a", "a"]


async def entry(since: float, *, again: bool = False) -> QueuedRequest:
    return QueuedRequest(since, 10, 2, 0.0, None, again, None, asyncio.get_running_loop().create_future())


def leave_all(queue: WaitingLine) -> list[QueuedRequest]:
    left = []
    for held in queue.leaving():
        queue.leave(held)
        left.append(held)
    return left


async def test_an_empty_queue_has_nobody_first() -> None:
    queue = WaitingLine()

    assert (len(queue), leave_all(queue), queue.all()) == (0, [], [])


async def test_first_come_first_served_but_for_those_who_lost_a_turn_before() -> None:
    queue = WaitingLine()
    one, two = await entry(1.0), await entry(2.0)
    back, later = await entry(3.0, again=True), await entry(4.0, again=True)
    for each in (one, back, two, later):
        queue.enter(each)

    assert queue.all() == [back, later, one, two]
    assert leave_all(queue) == [back, later, one, two]
    assert len(queue) == 0


async def test_whoever_leaves_in_between_is_missed_once() -> None:
    queue = WaitingLine()
    one, two, back = await entry(1.0), await entry(2.0), await entry(3.0, again=True)
    for each in (one, two, back):
        queue.enter(each)
    assert len(queue) == 3

    for _ in range(2):
        queue.leave(one)
        queue.leave(back)

    assert (len(queue), leave_all(queue)) == (1, [two])
