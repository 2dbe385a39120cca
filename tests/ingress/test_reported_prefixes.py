"""What engine replicas tell ingress replicas of their caches: real data planes, and stubs for engines."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from serve_app.api.engine_client import EngineReply
from serve_app.api.errors import ApiError
from serve_app.api.prompt_prefix import BLOCK_BYTES, PromptPrefix
from serve_app.engine.data_plane import DataPlane, IngressConnection
from serve_app.ingress.replica_set import ReplicaSet
from serve_app.wire.data_plane import MOST_BLOCKS, Beat, Prefix
from tests.ingress.fleet import DONE, FIRST, Fleet, request
from tests.ingress.test_replica_heartbeats import hears, listening, until
from tests.stub_engine import StubEngine, frames

ASKED = PromptPrefix(3 * BLOCK_BYTES, (1, 2, 3), 9)


async def test_the_engines_count_corrects_the_expectation(fleet: Fleet) -> None:
    engine = StubEngine(frames(FIRST, DONE), cached_tokens=0, prompt_tokens=300)
    await fleet.start(engine)
    known = fleet.known.prefixes

    for expected in (0, 300):
        asked = request(prefix=ASKED, wants_stream=True)
        async with fleet.client.call(asked) as reply:
            assert reply.stream is not None
            assert b"".join([data async for data in reply.stream]) == FIRST + DONE
        assert (asked.state.cached_tokens, asked.state.prompt_tokens) == (0, 300)
        assert engine.request.expected_cached_tokens == expected
    # It was sent there for the second time, and is there whatever was found.
    assert known.match(ASKED) == {"r1": ASKED.size}


async def test_a_whole_answer_tells_as_much(fleet: Fleet) -> None:
    await fleet.start(StubEngine(EngineReply(200, b"{}"), cached_tokens=64, prompt_tokens=100))

    asked = request(prefix=ASKED)
    async with fleet.client.call(asked):
        pass

    assert (asked.state.cached_tokens, asked.state.prompt_tokens) == (64, 100)


@asynccontextmanager
async def heard(cache_tokens: int, known: ReplicaSet) -> AsyncIterator[dict[str, dict[str, str]]]:
    """A replica with such a prefix cache, whose heartbeats an ingress hears that knows `known`: Ray's word of
    it."""
    plane = DataPlane(StubEngine(EngineReply(200, b"{}")), prefix_cache_tokens=cache_tokens, step_tokens=2048)
    await plane.start("127.0.0.1")
    where = {"r1": {"address": plane.address, "token": plane.token}}
    try:
        async with listening(known) as listener:
            known.update(where)
            listener.look()
            (there,) = known.listed()
            await until(lambda: hears(listener, there))
            yield where
    finally:
        await plane.stop()


async def test_an_ingress_replica_learns_what_another_one_sent(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve_app.engine.data_plane.BEAT_S", 0.01)
    other = ReplicaSet()
    async with heard(12_800, other) as where:
        fleet.known.update(where)

        async with fleet.client.call(request(prefix=ASKED)):
            pass

        await until(lambda: other.prefixes.match(ASKED) == {"r1": ASKED.size})
        assert other.prefixes._caches["r1"].most == 100  # blocks of 128 tokens
        assert other.step_tokens == 2048


async def test_heartbeat_has_the_latest_prefixes_within_its_bound() -> None:
    plane = DataPlane(StubEngine(EngineReply(200)))
    for _ in range(2):
        IngressConnection(plane).frames.on_connected()
    source, listener = plane._connections
    blocks = list(range(1, 256))
    for number in range(40):
        plane.share_prefix(source, Prefix(blocks, number))

    listener._known = True
    sent: list[Beat] = []
    listener.frames.send = sent.append  # type: ignore[method-assign]
    listener.send_heartbeat(Beat(""))
    listener.send_heartbeat(Beat(""))

    most = MOST_BLOCKS // 256
    assert [[prefix.end for prefix in beat.prefixes] for beat in sent] == [list(range(40 - most, 40)), []]
    assert not source._of_others
    plane.share_prefix(source, Prefix(blocks, 1))
    listener.frames.writable = False  # its ingress reads nothing: heartbeats must not pile up
    listener.send_heartbeat(Beat(""))
    assert sent[-1].prefixes == []
    for connection in (source, listener):
        plane.forget(connection)


async def test_replica_without_prefix_cache_has_nothing_expected(fleet: Fleet) -> None:
    async with heard(0, fleet.known):
        async with fleet.client.call(request(prefix=ASKED)):
            pass

        assert fleet.known.prefixes.match(ASKED) == {}


async def test_refused_prompt_is_not_expected_in_the_cache(fleet: Fleet) -> None:
    await fleet.start(StubEngine(ApiError(400, "no such parameter")))

    async with fleet.client.call(request(prefix=ASKED)) as reply:
        assert reply.status == 400

    assert fleet.known.prefixes.match(ASKED) == {}
