"""`LocalEngine` around stubs of vLLM's handlers: what becomes of their replies, frames and failures."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.engine.exceptions import EngineDeadError

from serve_app.api.engine_client import Operation
from serve_app.wire.data_plane import ENGINE_DIED
from tests.engine.local import CHAT, DONE, FAILED, TOKEN, USAGE, ErrorInfo, ErrorResponse, Frames, Local


def refused_by_vllm(status: int) -> ErrorResponse:
    return ErrorResponse(error=ErrorInfo(message="no", type="any", code=status))


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("chat_completions", CHAT),
        ("completions", b'{"prompt":["a","b"]}'),
        ("tokenize", b'{"prompt":"sea"}'),
        ("detokenize", b'{"tokens":[1,2]}'),
    ],
)
async def test_a_handlers_document_is_the_reply(operation: Operation, body: bytes) -> None:
    local = Local(ErrorInfo(message="any document", type="x", code=1))

    reply = await local.reply(operation, body)

    assert (reply.status, json.loads(reply.body)["message"]) == (200, "any document")
    assert local.headers == ["r-1"]


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("tokenize", {"prompt": "a" * 33}),
        ("tokenize", {"messages": [{"role": "user", "content": "a" * 17}] * 2}),
        ("tokenize", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a" * 33}]}]}),
        ("detokenize", {"tokens": [1] * 9}),
    ],
)
async def test_what_cannot_fit_the_context_is_refused_before_vllm_sees_it(
    operation: Operation, body: dict[str, Any]
) -> None:
    local = Local(ErrorInfo(message="any document", type="x", code=1))

    error = await local.refusal(operation, json.dumps(body).encode())

    assert (error.status, error.code) == (400, "context_length_exceeded")
    assert local.requests == []


async def test_a_stream_opens_with_its_first_frame_at_hand() -> None:
    assert await Local(Frames(TOKEN, TOKEN, DONE)).streamed() == [
        TOKEN.encode(),
        TOKEN.encode(),
        DONE.encode(),
    ]


async def test_the_usage_frame_carries_the_latency_and_no_other_does() -> None:
    token, usage, done = await Local(Frames(TOKEN, USAGE, DONE)).streamed()

    assert (token, done) == (TOKEN.encode(), DONE.encode())
    latency = json.loads(usage.removeprefix(b"data: "))["latency"]
    assert latency["tokens_generated"] == 2
    assert latency["ttft_ms"] >= 500  # the half second the request had waited on its way here


@pytest.mark.parametrize("read", [0, 1])
async def test_leaving_a_stream_early_closes_it_in_the_engine(read: int) -> None:
    frames = Frames(TOKEN, stalls=True)

    async with Local(frames).call() as reply:
        for _ in range(read):
            await anext(reply.stream)
        assert not frames.closed

    assert frames.closed


async def test_a_stream_read_to_its_end_is_closed_too() -> None:
    frames = Frames(TOKEN, DONE)

    await Local(frames).streamed()

    assert frames.closed


async def test_being_cancelled_before_the_first_frame_closes_the_stream() -> None:
    frames = Frames(stalls=True)
    opening = asyncio.ensure_future(Local(frames).reply())
    await asyncio.sleep(0)  # let it begin: nothing else is awaited before the stalled frame

    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening

    assert frames.closed


async def test_an_error_in_the_first_frame_is_a_refusal_with_a_status() -> None:
    frames = Frames(FAILED, DONE)
    local = Local(frames)

    error = await local.refusal()

    assert (error.status, error.message, error.code) == (500, "gone wrong", "engine_error")
    assert local.errors == [error]
    assert frames.closed


async def test_an_error_within_a_stream_is_an_event_and_counted() -> None:
    local = Local(Frames(TOKEN, FAILED, DONE))

    _, event, done = await local.streamed()

    assert event.startswith(b"event: error\ndata: ")
    assert json.loads(event.removeprefix(b"event: error\ndata: "))["error"]["message"] == "gone wrong"
    assert done == DONE.encode()
    assert [error.code for error in local.errors] == ["engine_error"]


async def test_an_engine_that_dies_within_a_stream_says_so() -> None:
    local = Local(Frames(TOKEN, FAILED, DONE))

    async with local.call() as reply:
        await anext(reply.stream)
        local.llm.errored = True
        event = await anext(reply.stream)

    assert b'"code":"engine_died"' in event
    assert local.asked.state.lost == ENGINE_DIED


@pytest.mark.parametrize(
    ("exitcode", "code"),
    [
        (-signal.SIGKILL, "engine_killed"),
        (-signal.SIGSEGV, "engine_died"),
        (1, "engine_died"),
        (None, "engine_died"),
    ],
)
async def test_an_engine_core_that_was_killed_is_told_from_one_that_died_by_itself(
    exitcode: int | None, code: str
) -> None:
    local = Local(Frames(TOKEN, FAILED, DONE))
    manager = SimpleNamespace(processes=[SimpleNamespace(exitcode=exitcode)])
    local.llm.engine_core = SimpleNamespace(resources=SimpleNamespace(engine_manager=manager))

    async with local.call() as reply:
        await anext(reply.stream)
        local.llm.errored = True
        event = await anext(reply.stream)

    assert f'"code":"{code}"'.encode() in event
    assert local.asked.state.lost == code


async def test_a_fault_of_ours_within_a_stream_is_an_event_and_no_broken_connection(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of a broken connection the ingress would say that the replica was lost."""
    local = Local(Frames(TOKEN, KeyError("bug")))

    _, end = await local.streamed()

    assert json.loads(end.split(b"\n")[1].removeprefix(b"data: "))["error"]["code"] == "stream_failed"
    assert end.endswith(b"\n\ndata: [DONE]\n\n")
    assert [error.code for error in local.errors] == ["stream_failed"]
    assert local.asked.state.lost == ""
    assert "KeyError: 'bug'" in caplog.text


async def test_what_is_raised_within_a_stream_while_the_engine_dies_is_its_death() -> None:
    local = Local(Frames(TOKEN, RuntimeError("something of the engine's went away")))

    async with local.call() as reply:
        await anext(reply.stream)
        local.llm.errored = True
        end = await anext(reply.stream)

    assert b'"code":"engine_died"' in end
    assert local.asked.state.lost == ENGINE_DIED
    assert end.endswith(b"\n\ndata: [DONE]\n\n")


async def test_whatever_is_raised_while_the_engine_dies_is_its_death() -> None:
    def dies() -> None:
        local.llm.errored = True
        raise ValueError("something of the engine's went away")

    local = Local(dies)

    error = await local.refusal()

    assert (error.status, error.code) == (503, "engine_died")
    assert local.errors == [error]


@pytest.mark.parametrize(
    ("result", "status", "code"),
    [
        (refused_by_vllm(400), 400, "invalid_value"),
        (refused_by_vllm(501), 400, "unsupported_feature"),
        (ValueError("no"), 400, "invalid_value"),
        (RuntimeError("no"), 500, "engine_error"),
        (EngineDeadError(), 503, "engine_died"),
    ],
)
async def test_a_failure_before_the_stream_is_an_api_error_and_counted(
    result: Any, status: int, code: str
) -> None:
    local = Local(result)

    error = await local.refusal()

    assert (error.status, error.code) == (status, code)
    assert local.errors == [error]


@pytest.mark.parametrize(
    ("operation", "body", "param"),
    [
        ("chat_completions", b"{}", "messages"),
        ("chat_completions", b'{"messages":[],"n":65}', "n"),
        ("chat_completions", b'{"messages":[],"stop_token_ids":[1000]}', "stop_token_ids"),
        ("completions", b'{"prompt":[1000]}', "prompt"),
        ("completions", b'{"prompt":["a","b"],"n":33}', "n"),
        ("embeddings", b'{"input":[1000]}', "input"),
        ("detokenize", b'{"tokens":[1000]}', "tokens"),
    ],
)
async def test_what_could_break_the_engine_never_reaches_a_handler(
    operation: Operation, body: bytes, param: str
) -> None:
    local = Local(RuntimeError("reached"))

    error = await local.refusal(operation, body)

    assert (error.status, error.param) == (400, param)
    assert local.requests == []


async def test_what_the_model_cannot_do_is_the_clients_to_change() -> None:
    local = Local(None)
    local.handlers.openai_serving_chat = None

    error = await local.refusal()

    assert (error.status, error.param, error.code) == (400, "model", "unsupported_feature")


async def test_a_dead_engine_is_told_apart_from_one_that_dies_of_the_request() -> None:
    """The relay tries other replicas for as long as it takes on the first, and once on the second."""
    local = Local(Frames(TOKEN), errored=True)

    error = await local.refusal()

    assert (error.status, error.code) == (503, "engine_dead")
    assert local.requests == []


async def test_other_streams_are_left_alone_by_one_that_is_closed() -> None:
    first, second = Frames(TOKEN, TOKEN, DONE), Frames(TOKEN, TOKEN, DONE)

    async with Local(first).call() as one, Local(second).call() as other:
        await anext(one.stream)
        streams: list[AsyncIterator[bytes]] = [other.stream]
        assert [chunk async for chunk in streams[0]][-1] == DONE.encode()
        assert not first.closed
