"""Heartbeats of replicas on loopback, which the test sends. Time passes by looks."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from serve_app.api.engine_client import EngineReply
from serve_app.api.errors import ApiError
from serve_app.api.prompt_prefix import BLOCK_BYTES, PromptPrefix
from serve_app.engine.data_plane import DataPlane, IngressConnection
from serve_app.ingress import replica_heartbeats
from serve_app.ingress.engine_channel import EngineChannels
from serve_app.ingress.replica import Replica
from serve_app.ingress.replica_heartbeats import SILENT_LOOKS, SUSPECT_LOOKS, Heartbeats
from serve_app.ingress.replica_set import ReplicaSet
from serve_app.wire.data_plane import (
    LENGTH,
    MOST_BLOCKS,
    VERSION,
    Beat,
    FromIngress,
    Hello,
    Prefix,
    TokenCounts,
)
from serve_app.wire.frames import Frames
from tests.ingress.fakes import request
from tests.ingress.fleet import DONE, FIRST, Fleet
from tests.stub_engine import StubEngine, frames
from tests.timing import until

ASKED = PromptPrefix(3 * BLOCK_BYTES, (1, 2, 3), 9)


class FakeReplica:
    """A replica's port that greets every caller, and sends the heartbeats of the test."""

    def __init__(self) -> None:
        self.known = ReplicaSet()
        self.channels = EngineChannels()
        self.heartbeats = Heartbeats([self.known], self.channels)
        self.connected: list[Frames[FromIngress]] = []
        self._beats = 1

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(self._connect, "127.0.0.1", 0)
        host, port = self.server.sockets[0].getsockname()
        self.named = {"r1": {"address": f"{host}:{port}", "token": "t", "identity": ""}}

    def _connect(self) -> Frames[FromIngress]:
        connection: Frames[FromIngress] = Frames(
            FromIngress, lambda _: connection.send(Beat("", step_tokens=1)), lambda _: None
        )
        self.connected.append(connection)
        return connection

    async def begin(self) -> Replica:
        """Let Ray list the replica, and wait until its greeting has come."""
        self.known.update(self.named)
        self.heartbeats.look()
        (replica,) = self.known.listed()
        await until(lambda: self.known.choice.step_tokens == 1)
        return replica

    async def beat(self, trouble: str = "", still_s: float = 0.0, **more: Any) -> None:
        """Send a heartbeat, and wait until it is recorded."""
        self._beats += 1
        self.connected[-1].send(Beat(trouble, still_s, step_tokens=self._beats, **more))
        await until(lambda: self.known.choice.step_tokens == self._beats)

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.heartbeats.look()

    async def stop(self) -> None:
        self.server.close()
        for connection in self.connected:
            connection.abort()


@pytest.fixture
async def fake() -> AsyncIterator[FakeReplica]:
    made = FakeReplica()
    await made.start()
    yield made
    made.heartbeats.close()
    await made.stop()


async def test_a_replica_in_trouble_gets_no_requests(fake: FakeReplica) -> None:
    replica = await fake.begin()

    await fake.beat("its engine has taken no step for 4 s", 4.0)
    assert (len(fake.known), fake.known.take(10)) == (0, None)
    assert (replica.trouble, replica.still_s) == ("its engine has taken no step for 4 s", 4.0)

    await fake.beat()
    assert (len(fake.known), replica.trouble, replica.still_s) == (1, "", 0.0)
    assert fake.known.take(10) is not None


async def test_a_replica_reports_its_adapters_and_the_time_of_a_load(fake: FakeReplica) -> None:
    replica = await fake.begin()

    await fake.beat(adapters=["pirate", "sailor"], adapter_load_s=0.25)
    assert (replica.adapters, replica.adapter_load_s) == ({"pirate", "sailor"}, 0.25)

    await fake.beat(adapters=["sailor"], adapter_load_s=0.25, first_runs_left=["grammar"], unwritten_s=90.0)
    assert (replica.first_runs_left, replica.unwritten_s) == (["grammar"], 90.0)
    assert replica.adapters == {"sailor"}


async def test_a_replica_whose_process_ends_is_out_at_once(fake: FakeReplica) -> None:
    replica = await fake.begin()

    await fake.stop()
    await until(lambda: len(fake.known) == 0)

    assert "cannot be reached" in replica.trouble


async def test_a_silent_replica_is_suspect_after_one_second_and_out_after_two(fake: FakeReplica) -> None:
    replica = await fake.begin()
    fake.look(SUSPECT_LOOKS - 1)
    assert replica.failures == 0
    fake.look(SILENT_LOOKS - SUSPECT_LOOKS)
    assert (len(fake.known), replica.failures) == (1, 1)  # it is picked after all others

    fake.look()

    assert len(fake.known) == 0
    assert replica.trouble == "it has sent no heartbeat for 2 s"
    assert replica.still_s == 1.5  # four heartbeats, of which the first was due within half a second
    fake.look()
    assert replica.still_s == 1.75

    await fake.beat()
    assert (len(fake.known), replica.failures, replica.still_s) == (1, 0, 0.0)
    fake.look(SUSPECT_LOOKS - 1)
    assert replica.failures == 0


async def test_draining_replica_is_heard_until_its_last_request(
    fake: FakeReplica, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []
    fake.known.on_trouble.append(lambda replica: told.append(replica.trouble))
    replica = await fake.begin()
    slot = fake.known.take(10)
    assert slot is not None

    fake.known.update({})
    with caplog.at_level(logging.WARNING, "ray.serve"):
        for _ in range(3):
            fake.look()
            await fake.beat("its engine has taken no step for 4 s")

    assert set(told) == {"its engine has taken no step for 4 s"}
    assert len(told) >= 3  # Ray does not check a draining replica
    assert [record.message.split(": ")[1] for record in caplog.records] == [told[0]]

    fake.known.release(slot)
    fake.look()
    assert fake.channels.current(replica) is None


# Prefix caches.


async def test_a_heartbeat_reports_the_cache_and_other_ingresses_prompts(fake: FakeReplica) -> None:
    await fake.begin()
    index = fake.known.prefixes
    await fake.beat(prefix_cache_tokens=384)  # three blocks

    await fake.beat(prefixes=[Prefix([1, 2, 3], 0)])  # type: ignore[arg-type]
    assert index.match(ASKED) == {"r1": ASKED.size}
    await fake.beat(prefix_cache_tokens=128)
    assert index.match(ASKED) == {"r1": BLOCK_BYTES}
    await fake.beat(prefix_cache_tokens=0)
    assert index.match(ASKED) == {}


async def test_all_indexes_together_are_bounded(fake: FakeReplica, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_heartbeats, "MOST_INDEXED_TOKENS", 256)
    await fake.begin()

    await fake.beat(prefix_cache_tokens=10_000)
    await fake.beat(prefixes=[Prefix([1, 2, 3], 0)])
    assert fake.known.prefixes.match(ASKED) == {"r1": 2 * BLOCK_BYTES}


async def test_the_engines_count_corrects_the_expectation(fleet: Fleet) -> None:
    engine = StubEngine(frames(FIRST, DONE), counts=TokenCounts(0, 300, 600, 20))
    await fleet.start(engine)

    for expected in (0, 300):
        asked = request(prefix=ASKED, wants_stream=True)
        async with fleet.client.call(asked) as reply:
            assert reply.stream is not None
            assert b"".join([data async for data in reply.stream]) == FIRST + DONE
        assert asked.counts == engine.counts
        assert engine.request.message.expected_cached_tokens == expected
    # It was sent there for the second time, and is cached now.
    assert fleet.known.prefixes.match(ASKED) == {"r1": ASKED.size}


@pytest.mark.parametrize("answer", [EngineReply(200, b"{}"), ApiError(400, "no such parameter")])
async def test_a_whole_answer_has_counts_and_a_refused_prompt_is_not_cached(
    fleet: Fleet, answer: EngineReply | ApiError
) -> None:
    await fleet.start(StubEngine(answer, counts=TokenCounts(64, 100)))
    asked = request(prefix=ASKED)

    async with fleet.client.call(asked) as reply:
        good = reply.status == 200

    assert asked.counts == (TokenCounts(64, 100) if good else TokenCounts())
    assert fleet.known.prefixes.match(ASKED) == ({"r1": ASKED.size} if good else {})


@asynccontextmanager
async def listening(plane: DataPlane) -> AsyncIterator[list[Beat]]:
    """Collect the heartbeats of a data plane, as an ingress replica gets them."""
    channels, beats = EngineChannels(), list[Beat]()
    channel = await channels.to(Replica("r1", plane.address, plane.token))
    channel.on_beat = beats.append
    yield beats
    channels.close_all()


async def test_an_ingress_replica_hears_the_latest_prompts_of_another(fleet: Fleet) -> None:
    plane = await fleet.start(StubEngine(EngineReply(200, b"{}")))
    blocks = tuple(range(1, 256))
    async with listening(plane) as beats:
        for number in range(1, 41):
            await fleet.whole(request(prefix=PromptPrefix(255 * BLOCK_BYTES, blocks, number)))
        await until(lambda: any(beat.prefixes for beat in beats) and not beats[-1].prefixes)

    heard = [prefix.end for beat in beats for prefix in beat.prefixes]
    most = MOST_BLOCKS // 256
    assert heard[-most:] == list(range(41 - most, 41))
    assert all(len(beat.prefixes) <= most for beat in beats)


class FakeTransport(asyncio.Transport):
    """Keeps the heartbeats that an engine replica writes."""

    def __init__(self) -> None:
        super().__init__()
        self.beats: list[Beat] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.beats.append(msgspec.msgpack.decode(bytes(data)[LENGTH.size :], type=Beat))


async def test_prompts_do_not_pile_up_for_an_ingress_replica_that_does_not_read() -> None:
    plane = DataPlane(StubEngine(EngineReply(200)))
    connection = IngressConnection(plane)
    transport = FakeTransport()
    connection.frames.connection_made(transport)
    hello = msgspec.msgpack.encode(Hello(VERSION, plane.token))
    connection.frames.data_received(LENGTH.pack(len(hello)) + hello)

    for pause in (False, True):
        if pause:
            connection.frames.pause_writing()
        connection.note(Prefix([1, 2, 3], 9))
        connection.send_heartbeat(Beat(""))

    greeting, read, unread = transport.beats
    assert (greeting.prefixes, read.prefixes, unread.prefixes) == ([], [Prefix([1, 2, 3], 9)], [])
