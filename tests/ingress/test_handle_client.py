import asyncio
import time
from typing import Any

import grpc
import msgspec
import pytest
from ray.exceptions import RayActorError, RayTaskError
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from serve_app.api.engine_client import EngineReply, EngineRequest
from serve_app.api.errors import ApiError
from serve_app.api.trace_context import TraceContext
from serve_app.engine.engine_deployment import ACCEPTED
from serve_app.ingress import replica_set as replicas
from serve_app.ingress.handle_client import HandleClient
from serve_app.ingress.replica_choice import SEQUENCE_TOKENS
from serve_app.settings import ModelSettings
from serve_app.settings.knobs import Knobs
from serve_app.wire.data_plane import Call
from tests.ingress.holding import hold
from tests.ingress.stub_handle import StubHandle

BODY = b"{}"
MODEL = ModelSettings(name="tide", max_ongoing_requests=1)
STREAM = (200, "text/event-stream", {}, None)
LOST = [
    RayActorError(),
    grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata()),
]
OURS = [RayTaskError("call", "traceback", ValueError("x")), KeyError("x")]
"""What the replica's own code has raised, as Ray's two transports pass it on."""


def request(**changes: Any) -> EngineRequest:
    """A request that arrived half a second ago."""
    arrived = time.perf_counter() - 0.5
    return EngineRequest("chat_completions", changes.pop("body", BODY), "r-1", arrived, **changes)


@pytest.fixture(autouse=True)
def _own_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "_sets", {})
    replicas.replica_set(MODEL.deployment_name).update({"a": {"address": "a:1", "token": "t"}})


def sent(message: bytes) -> Call:
    return msgspec.msgpack.decode(message, type=Call)


def client(handle: StubHandle, **knobs: Any) -> HandleClient:
    return HandleClient(MODEL, handle, hold(MODEL, handle, **knobs), lambda: Knobs(**knobs))


async def whole(handle: StubHandle) -> EngineReply:
    async with client(handle).call(request()) as reply:
        return reply


async def body(handle: StubHandle) -> list[bytes]:
    async with client(handle).call(request()) as reply:
        assert reply.stream is not None
        return [chunk async for chunk in reply.stream]


async def refusal(handle: StubHandle, **knobs: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        async with client(handle, **knobs).call(request()):
            pytest.fail("there was a reply")
    return caught.value


async def test_a_whole_reply_comes_with_its_status_and_headers() -> None:
    handle = StubHandle(ACCEPTED, (429, "application/json", {"Retry-After": "1"}, None), b'{"error":{}}')

    assert await whole(handle) == EngineReply(429, b'{"error":{}}', headers={"Retry-After": "1"})
    ((method, replica_id, message),) = handle.calls
    assert (method, replica_id) == ("call", "a")  # the replica that `EngineRouter` is told of
    call = sent(message)
    assert (call.operation, call.body, call.request_id) == ("chat_completions", b"{}", "r-1")
    assert call.waited_s >= 0.5
    assert call.held_s == 0.0


async def test_a_stream_comes_chunk_by_chunk() -> None:
    chunks = [b"data: a\n\n", b"data: b\n\n"]

    assert await body(StubHandle(ACCEPTED, STREAM, *chunks)) == chunks


async def test_the_trace_goes_along_and_the_cached_tokens_come_back() -> None:
    trace = TraceContext("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=1")
    for items in (
        [ACCEPTED, STREAM, b"data: a\n\n", 12],
        [ACCEPTED, (200, "application/json", {}, 12), b"{}"],
    ):
        handle = StubHandle(*items)
        asked = request(trace=trace, expected_cached_tokens=16)
        async with client(handle).call(asked) as reply:
            if reply.stream is not None:
                assert [chunk async for chunk in reply.stream] == [b"data: a\n\n"]

        assert asked.cached_tokens == 12
        call = sent(handle.calls[0][-1])
        assert (call.traceparent, call.tracestate) == (trace.traceparent, "a=1")
        assert call.expected_cached_tokens == 16


async def test_leaving_early_cancels_what_the_replica_still_generates() -> None:
    handle = StubHandle(ACCEPTED, STREAM, b"data: a\n\n", asyncio.Event())

    async with client(handle).call(request()) as reply:
        assert reply.stream is not None
        assert await anext(reply.stream) == b"data: a\n\n"
        assert not handle.items.cancelled

    assert handle.items.cancelled


@pytest.mark.parametrize("error", LOST, ids=type)
async def test_a_replica_lost_before_its_first_chunk_is_a_503(error: Exception) -> None:
    for handle in (StubHandle(error), StubHandle(ACCEPTED, STREAM, error)):
        failure = await refusal(handle)

        assert (failure.status, failure.code) == (503, "model_unavailable")
        assert handle.items.cancelled


@pytest.mark.parametrize("error", LOST, ids=type)
async def test_a_replica_lost_within_a_stream_is_an_error_event_and_an_end(error: Exception) -> None:
    first, last = await body(StubHandle(ACCEPTED, STREAM, b"data: a\n\n", error))

    assert first == b"data: a\n\n"
    assert last.startswith(b"event: error\ndata: ")
    assert b'"code":"replica_lost"' in last
    assert last.endswith(b"\n\ndata: [DONE]\n\n")


@pytest.mark.parametrize("error", OURS, ids=type)
async def test_a_fault_of_ours_is_not_told_as_a_lost_replica(error: Exception) -> None:
    """Whoever answers the client makes `internal_error` of it, or `stream_failed`, and logs it."""
    with pytest.raises(type(error)):
        await whole(StubHandle(ACCEPTED, error))
    with pytest.raises(type(error)):
        await body(StubHandle(ACCEPTED, STREAM, b"data: a\n\n", error))


async def test_an_answer_may_take_longer_than_the_wait_for_a_replica() -> None:
    """The engine's part is not bounded by `cold_wait_timeout_s`."""
    answered = asyncio.Event()
    calling = client(
        StubHandle(ACCEPTED, answered, (200, "application/json", {}, None), b"{}"), cold_wait_timeout_s=0.01
    )
    asyncio.get_running_loop().call_later(0.1, answered.set)

    async with calling.call(request()) as reply:
        assert reply.body == b"{}"


async def test_no_replica_that_takes_the_request_in_time_is_a_503() -> None:
    error = await refusal(StubHandle(asyncio.Event()), cold_wait_timeout_s=0.001)

    assert (error.status, error.code) == (503, "model_unavailable")
    assert "cold_wait_timeout_s = 0.001" in error.message


async def test_without_a_replica_a_request_is_held_and_not_yet_rays() -> None:
    known = replicas.replica_set(MODEL.deployment_name)
    known.update({})
    handle = StubHandle(ACCEPTED, (200, "application/json", {}, None), b"{}", holds=True)
    asked_for = request()
    calling = client(handle)

    async def ask() -> EngineReply:
        async with calling.call(asked_for) as reply:
            assert known.in_flight("a") == 1
            return reply

    asked = asyncio.create_task(ask())
    await handle.asked.wait()
    assert handle.calls == []
    known.update({"a": {"address": "a:1", "token": "t"}})

    assert (await asked).body == b"{}"
    assert 0.0 < asked_for.held_s == sent(handle.calls[0][-1]).held_s
    assert known.in_flight("a") == 0


async def test_requests_count_while_they_are_open_and_are_refused_beyond_what_a_replica_may_have() -> None:
    handle = StubHandle(ACCEPTED, (200, "application/json", {}, None), b"{}")
    calling = client(handle)

    async with calling.call(request()):
        with pytest.raises(ApiError) as caught:
            async with calling.call(request()):
                pytest.fail("there was room")
    assert (caught.value.status, caught.value.code) == (429, "queue_full")
    assert replicas.replica_set(MODEL.deployment_name).in_flight("a") == 0


async def test_a_refusal_says_nothing_of_prefill() -> None:
    known = replicas.replica_set(MODEL.deployment_name)
    calling = client(StubHandle(ACCEPTED, (400, "application/json", {}, None), b"{}"))

    async with calling.call(request(body=b"x" * 4000, wants_stream=True)):
        assert known.load("a") == 1000 + SEQUENCE_TOKENS
    assert (known.load("a"), known.in_flight("a")) == (0, 0)


@pytest.mark.parametrize("content_type", ["text/event-stream", "application/json"])
async def test_a_prompt_weighs_until_the_replica_answers(content_type: str) -> None:
    known = replicas.replica_set(MODEL.deployment_name)
    asked = asyncio.Event()
    handle = StubHandle(ACCEPTED, asked, (200, content_type, {}, None), b"data: a\n\n")
    calling = client(handle)

    async def ask() -> None:
        async with calling.call(request(body=b"x" * 4000)):
            assert known.load("a") == SEQUENCE_TOKENS

    task = asyncio.create_task(ask())
    await asyncio.sleep(0)
    assert known.load("a") == 1000 + SEQUENCE_TOKENS
    asked.set()
    await task
    assert (known.load("a"), known.in_flight("a")) == (0, 0)


@pytest.mark.parametrize(
    "items",
    [
        [RayActorError()],
        [BackPressureError(3, 2)],
        [ACCEPTED, STREAM, RayActorError()],
        [ACCEPTED, (503, "application/json", {}, None), RayActorError()],
    ],
    ids=["lost at once", "refused by Ray", "lost before a frame", "lost before a body"],
)
async def test_a_request_that_fails_leaves_no_load_behind(items: list[Any]) -> None:
    known = replicas.replica_set(MODEL.deployment_name)

    await refusal(StubHandle(*items))

    assert (known.load("a"), known.in_flight("a")) == (0, 0)


async def test_a_client_that_leaves_before_the_first_answer_leaves_no_load_behind() -> None:
    known = replicas.replica_set(MODEL.deployment_name)
    handle = StubHandle(asyncio.Event())
    task = asyncio.create_task(whole(handle))
    await asyncio.sleep(0)
    assert known.in_flight("a") == 1

    task.cancel()
    await asyncio.wait((task,))

    assert handle.items.cancelled
    assert (known.load("a"), known.in_flight("a")) == (0, 0)


async def test_a_full_queue_is_a_429() -> None:
    assert (await refusal(StubHandle(BackPressureError(3, 2)))).status == 429


async def test_engines_that_cannot_start_are_a_503() -> None:
    error = await refusal(StubHandle(DeploymentUnavailableError(DeploymentID("Engine-tide", "app"))))

    assert (error.status, error.headers) == (503, {"Retry-After": "30"})
