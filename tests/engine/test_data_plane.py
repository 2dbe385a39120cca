"""`DataPlane` on loopback with a real client; only the engine is a stub."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from types import SimpleNamespace

import aiohttp
import pytest

from serve_app.api.engine_client import OPERATIONS, EngineReply, EngineRequest
from serve_app.api.errors import ApiError
from serve_app.engine import data_plane
from serve_app.engine.data_plane import DataPlane
from serve_app.wire.data_plane_headers import HELD_HEADER, REQUEST_ID_HEADER, TOKEN_HEADER, WAITED_HEADER
from tests.stub_engine import LIMIT_S, MuteEngine, StubEngine, failing, frames, stalled

FIRST, DONE = b"data: a\n\n", b"data: [DONE]\n\n"


class Port:
    """A data plane that listens, and a client with its token."""

    def __init__(self, plane: DataPlane, session: aiohttp.ClientSession) -> None:
        self.plane = plane
        self.session = session

    def url(self, operation: str) -> str:
        return f"http://{self.plane.address}/{operation}"

    def post(
        self, operation: str = "completions", token: str | None = None, **headers: str
    ) -> aiohttp.client._RequestContextManager:
        given = self.plane.token if token is None else token
        return self.session.post(self.url(operation), data=b"{}", headers={TOKEN_HEADER: given, **headers})


@asynccontextmanager
async def listening(engine: StubEngine) -> AsyncIterator[Port]:
    plane = DataPlane(engine)
    await plane.start("127.0.0.1")
    try:
        async with aiohttp.ClientSession() as session, asyncio.timeout(LIMIT_S):
            yield Port(plane, session)
    finally:
        await plane.stop()


async def test_an_operation_reaches_the_engine_with_all_that_came_with_it() -> None:
    engine = StubEngine(EngineReply(201, b'{"ok":1}', headers={"Retry-After": "2"}))

    async with listening(engine) as port:
        headers = {REQUEST_ID_HEADER: "r-1", WAITED_HEADER: "1.250000", HELD_HEADER: "1.000000"}
        async with port.post("chat_completions", **headers) as reply:
            assert (reply.status, await reply.read()) == (201, b'{"ok":1}')
            assert reply.content_type == "application/json"
            assert reply.headers["Retry-After"] == "2"

    assert engine.requests == [EngineRequest("chat_completions", b"{}", "r-1", held_s=1.0)]
    assert engine.requests[0].waited_s >= 1.25


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_every_operation_has_its_path(operation: str) -> None:
    engine = StubEngine(EngineReply(200))

    async with listening(engine) as port, port.post(operation) as reply:
        assert reply.status == 200

    assert engine.requests[0].operation == operation


async def test_a_body_larger_than_aiohttps_own_bound_is_read_whole() -> None:
    engine = StubEngine(EngineReply(200))
    body = b"x" * (5 << 20)

    async with listening(engine) as port:
        headers = {TOKEN_HEADER: port.plane.token}
        async with port.session.post(port.url("completions"), data=BytesIO(body), headers=headers) as reply:
            assert reply.status == 200

    assert engine.requests[0].body == body


@pytest.mark.parametrize("token", ["", "wrong", "ünknown", "0" * 64])
async def test_a_stranger_is_refused_before_anything_else(token: str) -> None:
    engine = StubEngine(EngineReply(200))

    async with listening(engine) as port:
        for operation in ("completions", "no_such_operation"):
            async with port.post(operation, token=token) as reply:
                assert reply.status == 403

    assert engine.requests == []


async def test_a_caller_without_a_token_is_refused() -> None:
    async with listening(StubEngine(EngineReply(200))) as port:
        async with port.session.post(port.url("completions"), data=b"{}") as reply:
            assert reply.status == 403


async def test_every_data_plane_has_a_token_of_its_own() -> None:
    engine = StubEngine(EngineReply(200))

    assert DataPlane(engine).token != DataPlane(engine).token
    assert len(DataPlane(engine).token) >= 32


async def test_an_unknown_operation_is_a_404() -> None:
    engine = StubEngine(EngineReply(200))

    async with listening(engine) as port, port.post("shutdown") as reply:
        assert reply.status == 404

    assert engine.requests == []


async def test_a_stream_is_sent_as_it_comes() -> None:
    async with listening(StubEngine(stalled(FIRST))) as port, port.post() as reply:
        assert reply.status == 200
        assert reply.content_type == "text/event-stream"
        assert await reply.content.readany() == FIRST  # while the generation goes on


async def test_a_stream_ends_where_the_engine_ends_it() -> None:
    async with listening(StubEngine(frames(FIRST, DONE))) as port, port.post() as reply:
        assert await reply.read() == FIRST + DONE


async def test_an_error_of_the_engine_is_an_answer_with_its_status_and_headers() -> None:
    error = ApiError(429, "later", code="queue_full", headers={"Retry-After": "1"})

    async with listening(StubEngine(error)) as port, port.post() as reply:
        assert (reply.status, await reply.read()) == (429, error.body())
        assert reply.content_type == "application/json"
        assert reply.headers["Retry-After"] == "1"


async def test_a_failure_within_a_stream_breaks_the_connection_so_that_the_ingress_notices(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = StubEngine(failing(RuntimeError("engine"), FIRST))

    with caplog.at_level(logging.CRITICAL, "aiohttp.server"):
        async with listening(engine) as port, port.post() as reply:
            with pytest.raises(aiohttp.ClientPayloadError):
                await reply.read()


async def test_a_caller_that_leaves_within_a_stream_ends_its_generation() -> None:
    engine = StubEngine(stalled(FIRST))

    async with listening(engine) as port:
        async with port.post() as reply:
            await reply.content.readany()
            assert not engine.left.is_set()
        await engine.left.wait()

    assert engine.cancelled


async def test_a_caller_that_leaves_before_the_first_token_ends_its_prefill() -> None:
    engine = MuteEngine()

    async with listening(engine) as port:
        calling = asyncio.ensure_future(port.post().__aenter__())
        await engine.entered.wait()
        calling.cancel()
        await engine.left.wait()

    assert engine.cancelled


async def test_open_requests_are_counted_while_they_are_open() -> None:
    engine = StubEngine(stalled(FIRST))

    async with listening(engine) as port:
        assert port.plane.open_requests == 0
        async with port.post() as one, port.post() as two:
            await one.content.readany()
            await two.content.readany()
            assert port.plane.open_requests == 2
            async with port.post(token="wrong"):
                assert port.plane.open_requests == 2


async def test_requests_that_failed_are_not_counted_as_open() -> None:
    async with listening(StubEngine(ApiError(400, "no"))) as port:
        async with port.post() as reply:
            await reply.read()

        assert port.plane.open_requests == 0


async def test_a_drain_waits_for_open_streams_and_then_for_stragglers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stream ends at the twentieth look, far beyond the five quiet ones a drain is content with."""
    end = asyncio.Event()

    async def until_told() -> AsyncIterator[bytes]:
        yield FIRST
        await end.wait()
        yield DONE

    open_at_each_look: list[int] = []

    async with listening(StubEngine(until_told)) as port:

        async def look_again(seconds: float) -> None:
            open_at_each_look.append(port.plane.open_requests)
            if len(open_at_each_look) == 20:
                end.set()
            await asyncio.sleep(0)

        monkeypatch.setattr(data_plane, "asyncio", SimpleNamespace(sleep=look_again))
        async with port.post() as reply:
            await reply.content.readany()
            await port.plane.drain()
            assert await reply.read() == DONE

    assert open_at_each_look[:20] == [1] * 20
    assert open_at_each_look[-5:] == [0] * 5


async def test_a_straggler_during_the_drain_is_served_and_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    async with listening(StubEngine(EngineReply(200, b"{}"))) as port:

        async def look_again(seconds: float) -> None:
            nonlocal looks
            looks += 1
            if looks == 3:
                port.plane.open_requests += 1  # as `serve` does when a request comes in
            if looks == 6:
                async with port.post() as reply:
                    assert reply.status == 200
                port.plane.open_requests -= 1

        monkeypatch.setattr(data_plane, "asyncio", SimpleNamespace(sleep=look_again))
        await port.plane.drain()

    assert looks == 11  # the five quiet looks began anew after the sixth


async def test_a_stopped_data_plane_listens_no_more() -> None:
    async with listening(StubEngine(EngineReply(200))) as port:
        await port.plane.stop()

        with pytest.raises(aiohttp.ClientConnectorError):
            await port.post()


async def test_one_that_never_started_can_be_stopped() -> None:
    await DataPlane(StubEngine(EngineReply(200))).stop()


async def test_heartbeats_say_what_is_wrong_for_as_long_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_plane, "HEARTBEAT_INTERVAL_S", 0.001)
    trouble = ["", "its engine core has died", ""]
    plane = DataPlane(StubEngine(EngineReply(200)), lambda: trouble.pop(0) if trouble else "")
    await plane.start("127.0.0.1")
    try:
        async with aiohttp.ClientSession() as session, asyncio.timeout(LIMIT_S):
            url = f"http://{plane.address}{data_plane.HEARTBEATS}"
            async with session.get(url, headers={TOKEN_HEADER: plane.token}) as reply:
                heard = [await reply.content.readline() for _ in range(3)]
                assert heard == [b"alive\n", b"its engine core has died\n", b"alive\n"]
                assert plane.open_requests == 0
                await plane.stop()
                assert (await reply.content.read()).strip(b"alive\n") == b""
    finally:
        await plane.stop()


async def test_heartbeats_are_for_callers_with_the_token() -> None:
    async with listening(StubEngine(EngineReply(200))) as port:
        for headers in ({}, {TOKEN_HEADER: "wrong"}):
            url = f"http://{port.plane.address}{data_plane.HEARTBEATS}"
            async with port.session.get(url, headers=headers) as reply:
                assert reply.status == 403
