import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import DeploymentUnavailableError
from ray.serve.request_router import RequestRouter

from serve_app.ingress.ray_router import EngineRouter, Wake
from serve_app.ingress.replica_set import replica_set
from serve_app.patches.ray import run_router_here
from tests.ingress.fakes import FakeHandle
from tests.stub_engine import LIMIT_S

DEPLOYMENT = "Engine-of-the-router"
UNAVAILABLE = DeploymentUnavailableError(DeploymentID(DEPLOYMENT, "app"))


def replica(name: str, **metadata: str) -> Any:
    return SimpleNamespace(replica_id=SimpleNamespace(unique_id=name), replica_metadata=metadata)


def reachable(name: str) -> Any:
    return replica(name, address=f"10.0.0.1:{ord(name)}", token="key", identity="")


async def test_the_replica_set_follows_rays_list_of_reachable_replicas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rays_own: list[Any] = []
    monkeypatch.setattr(RequestRouter, "update_replicas", lambda self, running: rays_own.append(running))
    router = object.__new__(EngineRouter)  # without the event loop and the metrics that Ray would start
    running = [reachable("a"), reachable("b"), replica("c")]
    assert await router.choose_replicas(running) == [[each] for each in running]  # before `initialize_state`
    router.initialize_state(deployment=DEPLOYMENT)
    known = replica_set(DEPLOYMENT)

    router.update_replicas(running)
    assert len(known) == 2
    router.update_replicas([reachable("b")])

    left = known.take(10)
    assert left is not None
    assert (left.replica.replica_id, left.replica.address, left.replica.token) == ("b", "10.0.0.1:98", "key")
    assert len(rays_own) == 2


class Asked:
    """A wake, and whether a replica is needed."""

    def __init__(self, handle: FakeHandle, **pauses: float) -> None:
        self.needed = True
        self.unavailable = asyncio.Event()
        self.wake = Wake("tide", handle, lambda: self.needed, self.unavailable.set, **pauses)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_rays_router_runs_in_the_event_loop_of_the_requests() -> None:
    handle = FakeHandle()
    Asked(handle)

    assert handle.init_options == {"_run_router_in_separate_loop": False}
    run_router_here(handle)  # once: Ray allows no second time


async def test_wake_asks_once_until_stopped_and_can_restart() -> None:
    handle = FakeHandle(holds=True)
    asked = Asked(handle)
    asked.wake.stop()  # it was never started

    for chosen in (1, 2):
        for _ in range(24):
            asked.wake.start()
        await turns()
        asked.wake.start()
        await turns()
        assert (handle.chosen, handle.asking) == (chosen, 1)
        asked.wake.stop()
        await turns()
        assert handle.asking == 0


async def test_a_wake_ends_with_a_replica_and_reserves_nothing() -> None:
    handle = FakeHandle(on_choose=lambda: setattr(asked, "needed", False))
    asked = Asked(handle)

    asked.wake.start()
    await turns()

    assert (handle.chosen, handle.held) == (1, 0)


async def test_a_wake_reports_engines_that_cannot_start() -> None:
    """Ray tells only new requests, so the wake asks again."""
    handle = FakeHandle(holds=True)
    asked = Asked(handle, ask_again_s=0.001)
    asked.wake.start()
    await handle.asked.wait()

    handle.holds, handle.refuses = False, UNAVAILABLE
    async with asyncio.timeout(LIMIT_S):
        await asked.unavailable.wait()
    assert handle.asking == 0


@pytest.mark.parametrize(
    "oddity", [RuntimeError("odd"), TimeoutError("Ray's own"), asyncio.CancelledError("Ray's own")]
)
async def test_a_wake_logs_a_failure_and_asks_again(
    oddity: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    handle = FakeHandle(refuses=oddity, on_choose=lambda: setattr(asked, "needed", False))
    asked = Asked(handle, pause_s=0.0)
    with caplog.at_level(logging.WARNING, "ray.serve"):
        asked.wake.start()
        await handle.asked.wait()
        handle.refuses = None
        await turns()

    assert handle.chosen == 2
    assert [record.levelname for record in caplog.records] == ["ERROR"]


async def test_a_wake_pauses_while_ray_has_not_pushed_its_replica() -> None:
    handle = FakeHandle()
    asked = Asked(handle)

    asked.wake.start()
    await turns()

    assert handle.chosen == 1
    asked.wake.stop()
