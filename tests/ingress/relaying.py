"""Replicas as Ray would name them, and the client that relays to them; only the engines are stubs."""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from serve_app.api.engine_client import EngineReply, EngineRequest
from serve_app.api.errors import ApiError
from serve_app.engine.data_plane import DataPlane
from serve_app.ingress import replica_set as replicas
from serve_app.ingress.admission import Admission
from serve_app.ingress.engine_channel import EngineChannels
from serve_app.ingress.relayed_request import RelayClient
from serve_app.settings import ModelSettings
from serve_app.settings.knobs import Knobs
from tests.ingress.holding import hold
from tests.ingress.stub_handle import StubHandle
from tests.stub_engine import StubEngine

MODEL = ModelSettings(name="tide", max_ongoing_requests=4)
BODY = b'{"model":"tide"}'
WAITED_S = 1.5
FIRST, DONE = b"data: a\n\n", b"data: [DONE]\n\n"
DEAD = ApiError(503, "gone", code="engine_dead")
DIED = ApiError(503, "going", code="engine_died")


def request(**changes: Any) -> EngineRequest:
    """A request that arrived 1.5 s ago."""
    arrived = time.perf_counter() - WAITED_S
    return EngineRequest("chat_completions", changes.pop("body", BODY), "r-1", arrived, **changes)


@asynccontextmanager
async def serving(answer: web.Response) -> AsyncIterator[str]:
    """The address of an HTTP server that is no data plane of ours, and answers so to everything."""

    async def handle(request: web.BaseRequest) -> web.Response:
        return web.Response(status=answer.status, body=answer.body, content_type=answer.content_type)

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class Fleet:
    """Replicas as Ray would name them, and the client that relays to them."""

    def __init__(self, stack: AsyncExitStack, model: ModelSettings = MODEL) -> None:
        self._stack = stack
        self.known = replicas.replica_set(model.deployment_name)
        self.handle = StubHandle(holds=True)
        self.knobs: dict[str, Any] = {"drain_move_after_s": 0}
        self.held = hold(model, self.handle).queue
        self.admission = Admission(model, self.held, lambda: Knobs(**self.knobs))
        self.channels = EngineChannels()
        self.client = RelayClient(model, self.admission, self.channels)
        self._named: dict[str, dict[str, str]] = {}
        self._started = 0
        stack.callback(self.channels.close_all)

    async def start(self, engine: StubEngine, token: str | None = None, identity: str = "") -> DataPlane:
        """A replica of a model around `engine`; Ray names it with `token`, by default the right one."""
        plane = DataPlane(engine)
        await plane.start("127.0.0.1")
        self._stack.push_async_callback(plane.stop)
        self._started += 1
        named = {"address": plane.address, "token": token or plane.token, "identity": identity}
        self._named[f"r{self._started}"] = named
        self.known.update(self._named)
        return plane

    def name(self, replica: str, address: str) -> None:
        """Ray names a replica whose port somebody else has."""
        self._named[replica] = {"address": address, "token": "t"}
        self.known.update(self._named)

    def lose(self) -> None:
        """Ray drops every replica."""
        self._named.clear()
        self.known.update({})

    def stop(self, replica: str) -> None:
        """Ray has told a replica to stop, and drops it."""
        del self._named[replica]
        self.known.update(self._named)

    async def whole(self, asked: EngineRequest | None = None) -> EngineReply:
        async with self.client.call(asked or request()) as reply:
            assert reply.stream is None
            return reply

    async def streamed(self) -> bytes:
        async with self.client.call(request()) as reply:
            assert reply.stream is not None
            return b"".join([chunk async for chunk in reply.stream])

    async def refusal(self) -> ApiError:
        with pytest.raises(ApiError) as caught:
            await self.whole()
        return caught.value

    @property
    def replicas(self) -> list[replicas.Replica]:
        return [self.known._listed[name] for name in self._named]

    @property
    def loads(self) -> list[int]:
        return [self.known.load(name) for name in self._named]

    @property
    def in_flight(self) -> list[int]:
        return [self.known.in_flight(name) for name in self._named]
