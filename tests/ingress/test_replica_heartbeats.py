"""Heartbeats of real data planes on loopback; time passes by looks."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest

from serve_app.api.engine_client import EngineReply
from serve_app.engine.data_plane import DataPlane
from serve_app.ingress import replica_heartbeats as heartbeats
from serve_app.ingress.engine_channel import EngineChannels
from serve_app.ingress.replica_choice import Replica as Picked
from serve_app.ingress.replica_heartbeats import SILENT_LOOKS, SUSPECT_LOOKS, Heartbeats
from serve_app.ingress.replica_set import ReplicaSet
from serve_app.wire.data_plane import Beat
from tests.stub_engine import LIMIT_S, StubEngine


class Replica:
    """A data plane whose trouble the test decides."""

    def __init__(self) -> None:
        self.trouble = ""
        self.still_s = 0.0
        self.plane = DataPlane(StubEngine(EngineReply(200)), lambda: self.trouble, lambda: self.still_s)

    @property
    def metadata(self) -> dict[str, str]:
        return {"address": self.plane.address, "token": self.plane.token}


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "LOOK_INTERVAL_S", 3600.0)  # the test looks itself
    monkeypatch.setattr(heartbeats, "_RETRY_S", 0.01)
    monkeypatch.setattr("serve_app.engine.data_plane.BEAT_S", 0.01)


@asynccontextmanager
async def listening(known: ReplicaSet) -> AsyncIterator[Heartbeats]:
    listener = Heartbeats([known], EngineChannels())
    task = asyncio.create_task(listener.run())
    try:
        async with asyncio.timeout(LIMIT_S):
            await asyncio.sleep(0)  # it looks once
            yield listener
    finally:
        task.cancel()
        await asyncio.wait([task])


async def until(true: Callable[[], bool]) -> None:
    while not true():  # what is waited for has no event; the test's time limit bounds it
        await asyncio.sleep(0.005)


def hears(listener: Heartbeats, replica: Picked) -> bool:
    """Whether it has a channel to `replica`, and what that says is noted."""
    channel = listener._channels.current(replica)
    return channel is not None and isinstance(channel.on_beat, partial)


@asynccontextmanager
async def running() -> AsyncIterator[Replica]:
    replica = Replica()
    await replica.plane.start("127.0.0.1")
    try:
        yield replica
    finally:
        await replica.plane.stop()


async def test_a_replica_in_trouble_gets_no_requests() -> None:
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


async def test_heartbeat_reports_how_long_the_engine_stood_still() -> None:
    known = ReplicaSet()
    async with running() as replica, listening(known) as listener:
        replica.still_s, replica.trouble = 4.0, "its engine has taken no step for 4 s"
        known.update({"a": replica.metadata})
        listener.look()
        (one,) = known.listed()
        await until(lambda: len(known) == 0)
        assert one.still_s == 4.0

        replica.still_s, replica.trouble = 0.0, ""
        await until(lambda: len(known) == 1)
        assert one.still_s == 0.0


async def test_a_replica_whose_process_ends_is_out_at_once() -> None:
    known = ReplicaSet()
    async with running() as replica, listening(known) as listener:
        known.update({"a": replica.metadata})
        listener.look()

        await replica.plane.stop()
        await until(lambda: len(known) == 0)

        assert "cannot be reached" in next(iter(known.listed())).trouble


async def test_a_silent_replica_is_out_after_two_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("serve_app.engine.data_plane.BEAT_S", 3600.0)
    known = ReplicaSet()
    async with running() as replica, listening(known) as listener:
        known.update({"a": replica.metadata})
        listener.look()
        (one,) = known.listed()
        await until(lambda: hears(listener, one))  # the beat that greets it
        for _ in range(SUSPECT_LOOKS - 1):
            listener.look()
        assert one.failures == 0
        for _ in range(SILENT_LOOKS - SUSPECT_LOOKS):
            listener.look()
        assert len(known) == 1
        assert one.failures == 1  # it comes after all others

        listener.look()

        assert len(known) == 0
        assert one.trouble == "it has sent no heartbeat for 28800 s"
        assert one.still_s == 1.5  # four heartbeats, of which the first was due within half a second


async def test_a_late_heartbeat_heals_a_suspect_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve_app.engine.data_plane.BEAT_S", 3600.0)
    known = ReplicaSet()
    async with running() as replica, listening(known) as listener:
        known.update({"a": replica.metadata})
        listener.look()
        (one,) = known.listed()
        await until(lambda: hears(listener, one))
        for _ in range(SUSPECT_LOOKS):
            listener.look()
        assert one.failures == 1

        (connection,) = replica.plane._connections
        connection.send_heartbeat(Beat(""))
        await until(lambda: one.failures == 0)


async def test_trouble_of_a_draining_replica_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    known = ReplicaSet()
    told: list[str] = []
    known.notify_trouble(lambda replica: told.append(replica.trouble))
    async with running() as replica, listening(known) as listener:
        known.update({"a": replica.metadata})
        listener.look()
        slot = known.take(10)
        assert slot is not None
        await until(lambda: hears(listener, slot.replica))
        known.update({})
        with caplog.at_level(logging.WARNING, "ray.serve"):
            replica.trouble = "its engine has taken no step for 4 s"
            await until(lambda: len(told) >= 3)

    assert set(told) == {"its engine has taken no step for 4 s"}
    assert [record.message.split(": ")[1] for record in caplog.records] == [told[0]]


async def test_stranger_on_a_lost_replicas_port_is_refused() -> None:
    known = ReplicaSet()
    async with running() as replica, listening(known) as listener:
        known.update({"a": {**replica.metadata, "token": "another"}})
        listener.look()

        await until(lambda: len(known) == 0)


async def test_draining_replica_is_heard_until_its_last_request() -> None:
    known = ReplicaSet()
    async with running() as replica, listening(known) as listener:
        known.update({"a": replica.metadata})
        listener.look()
        slot = known.take(10)
        assert slot is not None
        await until(lambda: hears(listener, slot.replica))

        known.update({})
        listener.look()
        assert hears(listener, slot.replica)

        known.release(slot)
        listener.look()
        assert not hears(listener, slot.replica)


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
