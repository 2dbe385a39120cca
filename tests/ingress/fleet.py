"""A fleet for the tests of the ingress: only the engines and Ray's handle are fakes."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from serve_app.api.engine_client import DeliveredTokens, EngineClient, EngineReply, EngineRequest
from serve_app.api.errors import ApiError
from serve_app.engine.data_plane import DataPlane
from serve_app.ingress.admission import Admission
from serve_app.ingress.engine_channel import EngineChannels
from serve_app.ingress.relay import RelayClient
from serve_app.ingress.replica import Replica
from serve_app.ingress.replica_set import ReplicaSet
from serve_app.settings.knobs import Knobs
from serve_app.settings.tree import ModelSettings
from tests.ingress.fakes import FakeHandle, FakeProgress, request
from tests.refusal import refusal_of
from tests.stub_engine import LIMIT_S, StubEngine

MODEL = ModelSettings(name="tide", max_ongoing_requests=4)
FIRST, DONE = b"data: a\n\n", b"data: [DONE]\n\n"
DEAD = ApiError(503, "gone", code="engine_dead")
DIED = ApiError(503, "going", code="engine_died")
KILLED = ApiError(503, "killed", code="engine_killed")


class Fleet:
    """Replicas as Ray would name them, and the client that relays to them."""

    def __init__(
        self,
        stack: AsyncExitStack,
        model: ModelSettings = MODEL,
        clock: Callable[[], float] = time.perf_counter,
        is_alone: Callable[[], bool] = lambda: True,
    ) -> None:
        self._stack = stack
        self.known = ReplicaSet()
        self.handle = FakeHandle(holds=True)
        self.knobs: dict[str, Any] = {"drain_move_after_s": 0}
        self.admission = Admission(
            model,
            self.known,
            self.handle,
            lambda: Knobs(**self.knobs),
            FakeProgress(),
            clock,
            queues=is_alone,
        )
        self.channels = EngineChannels()
        self.client = RelayClient(
            model, self.admission, self.channels, backoff_s=0.0, move_retry_s=0.0, is_alone=is_alone
        )
        self._named: dict[str, dict[str, str]] = {}
        self._started = 0
        stack.callback(self.channels.close_all)

    async def start(self, engine: EngineClient, token: str | None = None, identity: str = "") -> DataPlane:
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
        self._named[replica] = {"address": address, "token": "t", "identity": ""}
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
        return await refusal_of(self.whole())

    @property
    def replicas(self) -> list[Replica]:
        """The replicas that Ray names, in the order of their start."""
        known = {replica.replica_id: replica for replica in self.known.listed()}
        return [known[name] for name in self._named]

    @property
    def loads(self) -> list[int]:
        return [replica.load for replica in self.replicas]

    @property
    def in_flight(self) -> list[int]:
        return [replica.in_flight for replica in self.replicas]


MOVED = rb": continued on another replica after \d+\.\d\d s\n\n"
TOKENS = 40


def frame(token: int) -> bytes:
    return b'data: {"id":"r-1","created":17,"choices":[{"token":%d}]}\n\n' % token


WHOLE = b"".join(frame(token) for token in range(TOKENS)) + DONE


class CountingEngine(StubEngine):
    """Counts from 0 on, or from where a continuation ends; stands still, or dies, at `until`."""

    def __init__(self, until: int = TOKENS, dies: ApiError | None = None, continuable: bool = True) -> None:
        super().__init__(RuntimeError("unused"))
        self.until, self.dies, self.continuable = until, dies, continuable
        self.reached, self.more = asyncio.Event(), asyncio.Semaphore(0)

    async def _reply(self) -> EngineReply:
        delivered = DeliveredTokens()
        sent = self.request.message.continuation
        begin = len(sent.tokens[0]) if sent is not None else 0
        assert sent is None or list(sent.tokens[0]) == list(range(begin))
        stream = self._count(begin, delivered)
        return EngineReply(200, stream=stream, delivered=delivered if self.continuable else None)

    async def _count(self, begin: int, delivered: DeliveredTokens) -> AsyncIterator[bytes]:
        for token in range(begin, min(TOKENS, max(self.until, begin + 1))):
            yield frame(token)
            delivered.note(0, [token])
            await asyncio.sleep(0)
        if self.until < TOKENS:
            self.reached.set()
            if self.dies is not None:
                self.request.lost = self.dies.code or ""
                yield self.dies.last_frames()
                return
            for token in range(self.until, TOKENS):
                await self.more.acquire()
                yield frame(token)
                delivered.note(0, [token])
        yield DONE

    def go_on(self, tokens: int = TOKENS) -> None:
        """Generate so many more."""
        for _ in range(tokens):
            self.more.release()


@asynccontextmanager
async def reading(fleet: Fleet, asked: EngineRequest | None = None) -> AsyncIterator[asyncio.Task[bytes]]:
    async def read() -> bytes:
        async with fleet.client.call(asked or request(wants_stream=True)) as reply:
            assert reply.stream is not None
            return b"".join([chunk async for chunk in reply.stream])

    task = asyncio.create_task(read())
    async with asyncio.timeout(LIMIT_S):
        yield task
    task.cancel()
    await asyncio.wait([task])


def without_comments(text: bytes) -> tuple[bytes, int]:
    return re.subn(MOVED, b"", text)


async def lose(plane: DataPlane) -> None:
    """As if its process had been killed."""
    for connection in list(plane._connections):
        connection.frames.close()
    await plane.stop()
