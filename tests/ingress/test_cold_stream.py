"""A client's stream through a cold start: the HTTP response, the queue and the relay together."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from serve_app.api.engine_client import EngineRequest
from serve_app.api.engine_response import EngineResponse
from serve_app.engine.data_plane import DataPlane
from serve_app.ingress.cold_start_progress import ColdStartProgress
from serve_app.ingress.engine_channel import EngineChannels
from serve_app.ingress.relay import RelayClient
from serve_app.settings import ModelSettings
from tests.api.connection import SCOPE, Connection
from tests.api.traffic_log import TrafficLog
from tests.ingress.fleet import FakeHandle, FakeProgress, hold
from tests.stub_engine import LIMIT_S, StubEngine, frames

MODEL = ModelSettings(name="tide")
FIRST, DONE = b"data: a\n\n", b"data: [DONE]\n\n"
COMMENT = rb": waiting for a replica of tide: phase=imports eta_s=12 waited_s=\d+\n\n"


class Cold:
    """A model at zero, a client of it, and the replica that can be started."""

    def __init__(self, stack: AsyncExitStack, **knobs: float) -> None:
        self._stack = stack
        self.handle = FakeHandle(holds=True)
        self.progress = FakeProgress(ColdStartProgress("imports", 12.0))
        self.late_s = 0.0
        self.admission = hold(
            MODEL, self.handle, self.progress, lambda: time.perf_counter() + self.late_s, **knobs
        )
        self.held = self.admission.queue
        channels = EngineChannels()
        self.relay = RelayClient(MODEL, self.admission, channels)
        self.traffic = TrafficLog()
        self.connection = Connection()
        stack.callback(channels.close_all)

    def ask(self) -> None:
        """The client's request arrives."""
        body = b'{"model":"tide","stream":true}'
        request = EngineRequest("chat_completions", body, "r-1", wants_stream=True)
        response = EngineResponse(self.relay, request, self.traffic)
        self.running = asyncio.create_task(response(SCOPE, self.connection.receive, self.connection.send))

    async def start_replica(self) -> None:
        plane = DataPlane(StubEngine(frames(FIRST, DONE)))
        await plane.start("127.0.0.1")
        self._stack.push_async_callback(plane.stop)
        self.admission.replicas.update({"r1": {"address": plane.address, "token": plane.token}})

    async def end(self) -> bytes:
        async with asyncio.timeout(LIMIT_S):
            await self.running
        assert self.connection.complete
        return self.connection.body


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as made:
        yield made


async def test_queued_stream_gets_progress_until_its_first_token(stack: AsyncExitStack) -> None:
    cold = Cold(stack, keep_alive_interval_s=0.001)
    cold.ask()
    async with asyncio.timeout(LIMIT_S):
        await cold.connection.body_arrived.wait()

    await cold.start_replica()

    assert re.fullmatch(b"(" + COMMENT + b")+" + re.escape(FIRST + DONE), await cold.end())
    assert cold.traffic.names == ["opened", "first_byte", "closed"]
    ttft_s, held_s = cold.traffic.seen["first_byte"]
    assert ttft_s >= held_s > 0.0
    assert cold.handle.chosen == 1


async def test_a_deadline_after_comments_is_an_error_event(stack: AsyncExitStack) -> None:
    cold = Cold(stack, keep_alive_interval_s=0.001, cold_wait_timeout_s=600)
    cold.ask()
    async with asyncio.timeout(LIMIT_S):
        await cold.connection.body_arrived.wait()

    cold.late_s = 600.0
    body = await cold.end()

    assert cold.connection.status == 200
    assert re.match(COMMENT, body)
    assert b"event: error\n" in body
    assert b'"code":"cold_wait_timeout"' in body
    assert body.endswith(DONE)
    assert cold.traffic.names == ["opened", "rejected", "closed"]


async def test_a_deadline_before_the_first_comment_has_its_own_status(stack: AsyncExitStack) -> None:
    cold = Cold(stack, cold_wait_timeout_s=0.001)
    cold.ask()

    await cold.end()

    assert cold.connection.status == 503
    assert cold.connection.headers["retry-after"] == "12"


async def test_client_that_leaves_the_queue_starts_no_replica(stack: AsyncExitStack) -> None:
    cold = Cold(stack, keep_alive_interval_s=0.001)
    cold.ask()
    async with asyncio.timeout(LIMIT_S):
        await cold.connection.body_arrived.wait()
        cold.connection.leave()
        await cold.running
        await asyncio.sleep(0)

    assert cold.traffic.names == ["opened", "closed"]
    assert (len(cold.held), cold.handle.asking, cold.progress.running) == (0, 0, False)
