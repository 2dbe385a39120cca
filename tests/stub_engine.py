"""An `EngineClient` that answers what it is told to, and notes what becomes of its calls."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from serve_app.api.engine_client import EngineReply
from serve_app.wire.data_plane import TokenCounts

LIMIT_S = 60.0
"""Far beyond what any awaited event takes; a test that reaches it has hung."""

StubAnswer = EngineReply | BaseException | Callable[[], AsyncIterator[bytes]]


@dataclass
class StubEngine:
    """Answers with a whole reply, raises, or streams what the called function yields."""

    answer: StubAnswer
    requests: list[Any] = field(default_factory=list)
    """The `EngineRequest`s of an ingress, or `EngineCall`s of a replica, as they were when they came."""
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: bool = False
    counts: TokenCounts = field(default_factory=TokenCounts)
    """Of each call, noted before its answer."""

    @asynccontextmanager
    async def call(self, request: Any, /) -> AsyncIterator[EngineReply]:
        self.requests.append(copy(request))
        self.request = request
        request.counts = copy(self.counts)
        self.entered.set()
        try:
            yield await self._reply()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        finally:
            self.left.set()

    async def _reply(self) -> EngineReply:
        await asyncio.sleep(0)  # no engine answers without letting others run
        if isinstance(self.answer, BaseException):
            raise self.answer
        if isinstance(self.answer, EngineReply):
            return self.answer
        return EngineReply(200, stream=self.answer())


class MuteEngine(StubEngine):
    """Takes a request and never comes to an answer, like an engine deep in a long prefill."""

    def __init__(self) -> None:
        super().__init__(RuntimeError("never reached"))

    async def _reply(self) -> EngineReply:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")


def frames(*chunks: bytes) -> Callable[[], AsyncIterator[bytes]]:
    """A stream of `chunks`, a new one at each call."""

    async def stream() -> AsyncIterator[bytes]:
        for chunk in chunks:
            await asyncio.sleep(0)
            yield chunk

    return stream


def stalled(*chunks: bytes) -> Callable[[], AsyncIterator[bytes]]:
    """A stream of `chunks` that then neither goes on nor ends."""

    async def stream() -> AsyncIterator[bytes]:
        for chunk in chunks:
            await asyncio.sleep(0)
            yield chunk
        await asyncio.Event().wait()

    return stream


def failing(error: BaseException, *chunks: bytes) -> Callable[[], AsyncIterator[bytes]]:
    """A stream of `chunks` that then raises."""

    async def stream() -> AsyncIterator[bytes]:
        for chunk in chunks:
            await asyncio.sleep(0)
            yield chunk
        raise error

    return stream
