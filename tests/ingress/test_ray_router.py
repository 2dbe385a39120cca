from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve.request_router import RequestRouter

from serve_app.ingress import replica_set as replicas
from serve_app.ingress.ray_router import EngineRouter

DEPLOYMENT = "Engine-tide"


def replica(name: str, **metadata: str) -> Any:
    return SimpleNamespace(replica_id=SimpleNamespace(unique_id=name), replica_metadata=metadata)


def reachable(name: str) -> Any:
    return replica(name, address=f"10.0.0.1:{ord(name)}", token="key")


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch) -> EngineRouter:
    """A router without the event loop, controller and metrics Ray would start it with."""
    monkeypatch.setattr(replicas, "_sets", {})
    monkeypatch.setattr(RequestRouter, "update_replicas", lambda self, running: None)
    made = object.__new__(EngineRouter)
    made.initialize_state(deployment=DEPLOYMENT)
    return made


async def test_the_relay_hears_of_running_replicas_as_soon_as_ray_says_so(router: EngineRouter) -> None:
    known = replicas.replica_set(DEPLOYMENT)

    router.update_replicas([reachable("a"), reachable("b")])
    assert len(known) == 2
    router.update_replicas([reachable("b")])

    left = known.take(10)
    assert left is not None
    where = left.replica
    assert (where.replica_id, where.address, where.token) == ("b", "10.0.0.1:98", "key")


async def test_a_replica_that_has_not_said_where_it_is_cannot_be_relayed_to(router: EngineRouter) -> None:
    router.update_replicas([replica("a"), reachable("b")])

    assert len(replicas.replica_set(DEPLOYMENT)) == 1


async def test_ray_itself_is_told_first(router: EngineRouter, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(RequestRouter, "update_replicas", lambda self, running: told.append(running))

    router.update_replicas([replica("a")])

    assert len(told[0]) == 1


async def test_every_replica_is_a_candidate_of_a_wake(router: EngineRouter) -> None:
    a, b = running = [reachable(name) for name in "ab"]

    assert await router.choose_replicas(running) == [[a], [b]]
