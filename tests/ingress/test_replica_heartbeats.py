"""Heartbeats of real data planes on loopback; time passes by looks."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from serve_app.api.engine_client import EngineReply
from serve_app.engine.data_plane import DataPlane
from serve_app.ingress import replica_heartbeats as heartbeats
from serve_app.ingress.replica_heartbeats import SILENT_LOOKS, Heartbeats
from serve_app.ingress.replica_set import ReplicaSet
from tests.stub_engine import LIMIT_S, StubEngine


class Replica:
    """A data plane whose trouble the test decides."""

    def __init__(self) -> None:
        self.trouble = ""
        self.plane = DataPlane(StubEngine(EngineReply(200)), lambda: self.trouble)

    @property
    def metadata(self) -> dict[str, str]:
        return {"address": self.plane.address, "token": self.plane.token}


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "LOOK_INTERVAL_S", 3600.0)  # the test looks itself
    monkeypatch.setattr(heartbeats, "_RETRY_S", 0.01)
    monkeypatch.setattr("serve_app.engine.data_plane.HEARTBEAT_INTERVAL_S", 0.01)


@asynccontextmanager
async def listening(known: ReplicaSet) -> AsyncIterator[Heartbeats]:
    listener = Heartbeats([known])
    task = asyncio.create_task(listener.run())
    try:
        async with asyncio.timeout(LIMIT_S):
            await until(lambda: listener._session is not None)  # and it has looked once
            yield listener
    finally:
        task.cancel()
        await asyncio.wait([task])


async def until(true: Callable[[], bool]) -> None:
    while not true():  # what is waited for has no event; the test's time limit bounds it
        await asyncio.sleep(0.005)


@asynccontextmanager
async def running() -> AsyncIterator[Replica]:
    replica = Replica()
    await replica.plane.start("127.0.0.1")
    try:
        yield replica
    finally:
        await replica.plane.stop()


async def test_a_replica_in_trouble_gets_no_requests_until_it_is_well_again() -> None:
    known = ReplicaSet()
    async with running() as replica, listening(known) as listener:
        known.update({"a": replica.metadata})
        listener.look()

        replica.trouble = "its engine core has died"
        await until(lambda: len(known) == 0)
        assert known.take(10) is None
        assert [one.trouble for one in known.listed()] == ["its engine core has died"]

        replica.trouble = ""
        await until(lambda: len(known) == 1)
        assert known.take(10) is not None


async def test_a_replica_whose_process_ends_is_out_at_once() -> None:
    known = ReplicaSet()
    async with running() as replica, listening(known) as listener:
        known.update({"a": replica.metadata})
        listener.look()

        await replica.plane.stop()
        await until(lambda: len(known) == 0)

        assert "cannot be reached" in next(iter(known.listed())).trouble


async def test_a_replica_that_falls_silent_is_out_after_as_many_looks_as_make_three_seconds() -> None:
    known = ReplicaSet()
    connected = asyncio.Event()

    async def say_nothing(request: web.Request) -> web.StreamResponse:
        connected.set()
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    app = web.Application()
    app.router.add_get("/heartbeats", say_nothing)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        async with listening(known) as listener:
            known.update({"a": {"address": f"127.0.0.1:{port}", "token": "t"}})
            listener.look()
            await connected.wait()
            for _ in range(SILENT_LOOKS - 2):
                listener.look()
            assert len(known) == 1

            listener.look()

            assert len(known) == 0
            assert next(iter(known.listed())).trouble == "it has sent no heartbeat for 43200 s"
    finally:
        await runner.cleanup()


async def test_a_stranger_on_a_lost_replicas_port_does_not_pass_for_it() -> None:
    known = ReplicaSet()
    async with running() as replica, listening(known) as listener:
        known.update({"a": {**replica.metadata, "token": "another"}})
        listener.look()

        await until(lambda: len(known) == 0)


async def test_a_replica_without_heartbeats_is_left_to_ray() -> None:
    """One of the version before, while the application is being replaced."""
    known = ReplicaSet()
    asked = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        asked.set()
        return web.Response(status=405)

    app = web.Application()
    app.router.add_get("/heartbeats", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with listening(known) as listener:
            known.update({"a": {"address": f"127.0.0.1:{runner.addresses[0][1]}", "token": "t"}})
            listener.look()
            await asked.wait()
            await until(
                lambda: all(one.task is None or one.task.done() for one in listener._listeners.values())
            )
            for _ in range(2 * SILENT_LOOKS):
                listener.look()

            assert len(known) == 1
    finally:
        await runner.cleanup()


async def test_nobody_listens_to_a_replica_that_ray_has_dropped() -> None:
    known = ReplicaSet()
    async with running() as replica, listening(known) as listener:
        known.update({"a": replica.metadata})
        listener.look()
        (one,) = listener._listeners.values()
        assert one.task is not None

        known.update({})
        listener.look()
        await asyncio.wait([one.task])

        assert one.task.cancelled()
        assert listener._listeners == {}
