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


def asking_for(name: str) -> Any:
    """A request as Ray queues it, whose handle was told of the replica `name`."""
    return SimpleNamespace(metadata=SimpleNamespace(session_id=name))


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


async def test_replicas_rank_by_the_load_this_process_has_on_them(router: EngineRouter) -> None:
    a, b, c = running = [reachable(name) for name in "abc"]
    router.update_replicas(running)
    known = replicas.replica_set(DEPLOYMENT)
    slots = [known.take(10, tokens) for tokens in (100, 300, 200)]
    assert None not in slots

    assert await router.choose_replicas(running) == [[a], [c], [b]]
    for slot in slots:
        assert slot is not None
        known.answered(slot)
    assert known.take(10) is not None  # on the first

    assert await router.choose_replicas(running) == [[b], [c], [a]]


async def test_the_replica_that_was_picked_comes_first_whatever_its_load(router: EngineRouter) -> None:
    """The request itself is counted on it by then."""
    a, b, c = running = [reachable(name) for name in "abc"]
    router.update_replicas(running)
    known = replicas.replica_set(DEPLOYMENT)
    assert known.take(10, 5000) is not None
    assert known.take(10) is not None

    assert await router.choose_replicas(running, asking_for("a")) == [[a], [c], [b]]
    assert await router.choose_replicas(running, asking_for("gone")) == [[c], [b], [a]]
    assert await router.choose_replicas(running, asking_for("")) == [[c], [b], [a]]


async def test_without_a_set_every_replica_is_still_a_candidate() -> None:
    router = object.__new__(EngineRouter)

    assert await router.choose_replicas([reachable("a"), reachable("b")]) != []
