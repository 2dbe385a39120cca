"""What a held request's client is told of its wait, and how long the request says that it was."""

import asyncio

import pytest
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import DeploymentUnavailableError

from serve_app.api.engine_client import ColdWait, RequestState
from serve_app.api.errors import ApiError
from serve_app.ingress import replica_set as replicas
from serve_app.ingress.cold_start_progress import ColdStartProgress
from tests.ingress.holding import MODEL, Queue, Waits, hold, ids, request
from tests.ingress.stub_handle import StubHandle
from tests.stub_engine import LIMIT_S

UNAVAILABLE = DeploymentUnavailableError(DeploymentID("Engine-tide", "app"))


@pytest.fixture(autouse=True)
def _own_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "_sets", {})


async def test_a_client_is_told_while_its_request_is_held_and_the_request_how_long_that_was() -> None:
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


async def test_a_wait_shorter_than_the_interval_is_not_told() -> None:
    queue = Queue()
    waits = Waits()
    asked = request(state=RequestState(tell_wait=waits))
    task = asyncio.create_task(queue.admission.take(asked))
    await asyncio.sleep(0)

    queue.up("a")
    await ids([task])

    assert waits.told == []
    assert asked.state.queued_s > 0.0


async def test_a_wait_that_failed_was_a_wait_too() -> None:
    queue = Queue(StubHandle(refuses=UNAVAILABLE))
    asked = request()

    with pytest.raises(ApiError):
        await queue.admission.take(asked)

    assert asked.state.queued_s > 0.0


async def test_all_waits_of_a_request_add_up() -> None:
    now = 100.0
    admission = hold(MODEL, StubHandle(holds=True), clock=lambda: now)
    held = admission.queue
    asked = request()
    for again in (False, True):
        task = asyncio.create_task(admission.take(asked, again=again))
        await asyncio.sleep(0)
        now += 2.5
        held.replicas.update({"a": {"address": "a:1", "token": "t"}})
        await task
        held.replicas.update({})

    assert asked.state.queued_s == 5.0


async def test_a_client_that_cannot_be_told_fails_its_own_request_only() -> None:
    async def broken(wait: ColdWait) -> None:
        raise OSError(32, "pipe")

    queue = Queue(keep_alive_interval_s=0.001)
    other = queue.ask()
    with pytest.raises(OSError, match="pipe"):
        await queue.admission.take(request(state=RequestState(tell_wait=broken)))

    queue.up("a")
    assert await ids([other]) == ["a"]
    assert queue.held.replicas.in_flight("a") == 1


async def test_however_short_the_interval_others_get_their_turn() -> None:
    queue = Queue(keep_alive_interval_s=1e-9)
    task = asyncio.create_task(queue.admission.take(request(state=RequestState(tell_wait=Waits()))))
    for _ in range(20):
        await asyncio.sleep(0)

    queue.up("a")

    assert await ids([task]) == ["a"]
