"""Many clients over real sockets: HTTP, the ingress's channel and a data plane; only the engine is a stub.

What one client does, or does not do, must not cost another a byte or hold it up.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest

from serve_app.api.endpoints import ApiModel
from serve_app.api.engine_client import EngineReply
from serve_app.api.engine_response import WriteNowMiddleware
from serve_app.api.http_api import create_app
from serve_app.engine.engine_call import EngineCall
from serve_app.settings.tree import HttpSettings, ModelSettings
from tests.api.server import StubObserver
from tests.http_server import port_of, uvicorn_with
from tests.ingress.fleet import DONE, Fleet
from tests.stub_engine import StubEngine

LARGE = 64 << 10
"""Bytes of an event as large as all that an engine replica may have of a stream on the way."""


def events(name: str, count: int, size: int) -> Iterator[bytes]:
    """`count` events that say whose they are, each at least `size` bytes of characters of several bytes."""
    padding = "größer 海 🌊 " * (size // 18 + 1) if size else ""
    return (f"data: {name} {number} {padding}\n\n".encode() for number in range(count))


def whole(name: str, count: int, size: int) -> bytes:
    return b"".join(events(name, count, size)) + DONE


class NamedEngine(StubEngine):
    """Streams the events that a request's body asks for, an event a step."""

    def __init__(self) -> None:
        super().__init__(RuntimeError("unused"))
        self.made: dict[str, int] = {}

    @asynccontextmanager
    async def call(self, request: EngineCall) -> AsyncIterator[EngineReply]:
        asked = json.loads(request.message.body)
        yield EngineReply(200, stream=self._events(asked["user"], asked["n"], asked["size"]))

    async def _events(self, name: str, count: int, size: int) -> AsyncIterator[bytes]:
        for event in events(name, count, size):
            self.made[name] = self.made.get(name, 0) + 1
            yield event
            await asyncio.sleep(0)
        yield DONE


class Served:
    """An HTTP server, and clients of it that read no further ahead than they are told."""

    def __init__(self, url: str, session: aiohttp.ClientSession, engine: NamedEngine) -> None:
        self.engine = engine
        self._url, self._session = url, session

    async def open(self, name: str, count: int, size: int = 0) -> aiohttp.ClientResponse:
        """A stream that has begun."""
        body = {"model": "tide", "stream": True, "user": name, "n": count, "size": size}
        return await self._session.post(f"{self._url}/v1/completions", json=body)

    async def whole(self, name: str, count: int, size: int = 0) -> bool:
        """Whether a stream comes byte for byte."""
        async with await self.open(name, count, size) as response:
            return await response.read() == whole(name, count, size)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    engine = NamedEngine()
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with AsyncExitStack() as stack:
        fleet = Fleet(stack, ModelSettings(name="tide"))
        await fleet.start(engine)
        app = create_app([ApiModel("tide", 0, fleet.client, 2048)], StubObserver(), HttpSettings())
        port = port_of(await stack.enter_async_context(uvicorn_with(WriteNowMiddleware(app))))
        session = aiohttp.ClientSession(connector=connector, read_bufsize=LARGE)
        await stack.enter_async_context(session)
        yield Served(f"http://127.0.0.1:{port}", session, engine)


async def test_a_slow_client_delays_nobody(served: Served) -> None:
    slow = await served.open("slow", 200, LARGE)
    read = b""
    for number in range(20):
        read += await slow.content.read(1)
        brisk = [served.whole(f"brisk-{number}-{one}", 30, one * 1000) for one in range(5)]
        assert await asyncio.gather(*brisk) == [True] * 5

    assert served.engine.made["slow"] < 150  # the rest waits for the client, and not in this process
    assert len(read) == 20
    assert read + await slow.read() == whole("slow", 200, LARGE)


async def test_large_events_of_many_streams_do_not_mix(served: Served) -> None:
    streams = [served.whole(f"stream-{one}", 20, LARGE if one % 2 else 7) for one in range(20)]
    assert await asyncio.gather(*streams) == [True] * 20
