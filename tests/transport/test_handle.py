from __future__ import annotations

import asyncio

import pytest
from ray.exceptions import RayActorError, RayTaskError
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from serve_app.api.client import EngineReply, EngineRequest
from serve_app.api.errors import ApiError
from serve_app.settings import ModelSettings
from serve_app.transport.handle import HandleClient
from tests.transport.stub_handle import StubHandle

REQUEST = EngineRequest("chat_completions", b"{}", "r-1", 0.5)
STREAM = (200, "text/event-stream", {})
LOST = [RayActorError(), RayTaskError("call", "traceback", ValueError("x"))]


def client(handle: StubHandle, wait_s: float = 600.0) -> HandleClient:
    return HandleClient(ModelSettings(name="tide"), handle, wait_s)


async def whole(handle: StubHandle) -> EngineReply:
    async with client(handle).call(REQUEST) as reply:
        return reply


async def body(handle: StubHandle) -> list[bytes]:
    async with client(handle).call(REQUEST) as reply:
        assert reply.stream is not None
        return [chunk async for chunk in reply.stream]


async def refusal(handle: StubHandle, wait_s: float = 600.0) -> ApiError:
    with pytest.raises(ApiError) as caught:
        async with client(handle, wait_s).call(REQUEST):
            pytest.fail("there was a reply")
    return caught.value


async def test_a_whole_reply_comes_with_its_status_and_headers() -> None:
    handle = StubHandle((429, "application/json", {"Retry-After": "1"}), b'{"error":{}}')

    assert await whole(handle) == EngineReply(429, b'{"error":{}}', headers={"Retry-After": "1"})
    assert handle.calls == [("chat_completions", b"{}", "r-1", 0.5)]


async def test_a_stream_comes_chunk_by_chunk() -> None:
    assert await body(StubHandle(STREAM, b"data: a\n\n", b"data: b\n\n")) == [b"data: a\n\n", b"data: b\n\n"]


async def test_leaving_early_cancels_what_the_replica_still_generates() -> None:
    handle = StubHandle(STREAM, b"data: a\n\n", asyncio.Event())

    async with client(handle).call(REQUEST) as reply:
        assert reply.stream is not None
        assert await anext(reply.stream) == b"data: a\n\n"
        assert not handle.items.cancelled

    assert handle.items.cancelled


@pytest.mark.parametrize("error", LOST, ids=type)
async def test_a_replica_lost_before_its_first_chunk_is_a_503(error: Exception) -> None:
    for handle in (StubHandle(error), StubHandle(STREAM, error)):
        failure = await refusal(handle)

        assert (failure.status, failure.code) == (503, "model_unavailable")
        assert handle.items.cancelled


@pytest.mark.parametrize("error", LOST, ids=type)
async def test_a_replica_lost_within_a_stream_is_an_error_event_and_an_end(error: Exception) -> None:
    first, last = await body(StubHandle(STREAM, b"data: a\n\n", error))

    assert first == b"data: a\n\n"
    assert last.startswith(b"event: error\ndata: ")
    assert b'"code":"replica_lost"' in last
    assert last.endswith(b"\n\ndata: [DONE]\n\n")


async def test_no_answer_in_time_is_a_503() -> None:
    error = await refusal(StubHandle(asyncio.Event()), wait_s=0.0)

    assert (error.status, error.code) == (503, "model_unavailable")


async def test_a_full_queue_is_a_429() -> None:
    assert (await refusal(StubHandle(BackPressureError(3, 2)))).status == 429


async def test_engines_that_cannot_start_are_a_503() -> None:
    error = await refusal(StubHandle(DeploymentUnavailableError(DeploymentID("Engine-tide", "app"))))

    assert (error.status, error.headers) == (503, {"Retry-After": "30"})
