"""`LocalEngine` around stubs of vLLM's handlers: what becomes of their replies, frames and failures."""

import asyncio
import json
import signal
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.engine.exceptions import EngineDeadError

from serve_app.api.engine_client import Operation
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
async def test_text_beyond_context_is_refused_before_vllm(operation: Operation, body: dict[str, Any]) -> None:
    local = Local(ErrorInfo(message="any document", type="x", code=1))

    error = await local.refusal(operation, json.dumps(body).encode())

    assert (error.status, error.code) == (400, "context_length_exceeded")
    assert local.requests == []


async def test_stream_has_latency_in_its_usage_frame() -> None:
    frames = Frames(TOKEN, USAGE, DONE)

    token, usage, done = await Local(frames).streamed()

    assert (token, done) == (TOKEN.encode(), DONE.encode())
    latency = json.loads(usage.removeprefix(b"data: "))["latency"]
    assert latency["tokens_generated"] == 2
    assert latency["ttft_ms"] >= 500  # the half second the request had waited on its way here
    assert frames.closed


@pytest.mark.parametrize("read", [0, 1])
async def test_leaving_a_stream_early_closes_it_in_the_engine(read: int) -> None:
    frames = Frames(TOKEN, stalls=True)

    async with Local(frames).call() as reply:
        for _ in range(read):
            await anext(reply.stream)
        assert not frames.closed

    assert frames.closed


async def test_being_cancelled_before_the_first_frame_closes_the_stream() -> None:
    frames = Frames(stalls=True)
    opening = asyncio.ensure_future(Local(frames).reply())
    await asyncio.sleep(0)  # let it begin: nothing else is awaited before the stalled frame

    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening

    assert frames.closed


async def test_error_in_first_frame_is_a_refusal() -> None:
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


@pytest.mark.parametrize("dying", [FAILED, RuntimeError("something of the engine's went away")])
@pytest.mark.parametrize(
    ("exitcode", "code"),
    [(-signal.SIGKILL, "engine_killed"), (-signal.SIGSEGV, "engine_died"), (None, "engine_died")],
)
async def test_killed_engine_core_differs_from_a_crashed_one(
    exitcode: int | None, code: str, dying: str | Exception
) -> None:
    local = Local(Frames(TOKEN, dying, DONE))
    manager = SimpleNamespace(processes=[SimpleNamespace(exitcode=exitcode)])
    local.llm.engine_core = SimpleNamespace(resources=SimpleNamespace(engine_manager=manager))

    async with local.call() as reply:
        await anext(reply.stream)
        local.llm.errored = True
        event = await anext(reply.stream)

    assert f'"code":"{code}"'.encode() in event
    assert local.asked.state.lost == code


async def test_server_fault_in_stream_is_an_event(
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


@pytest.mark.parametrize(
    ("result", "dies", "status", "code"),
    [
        (refused_by_vllm(400), False, 400, "invalid_value"),
        (refused_by_vllm(501), False, 400, "unsupported_feature"),
        (ValueError("no"), False, 400, "invalid_value"),
        (RuntimeError("no"), False, 500, "engine_error"),
        (EngineDeadError(), False, 503, "engine_died"),
        (ValueError("something of the engine's went away"), True, 503, "engine_died"),
    ],
)
async def test_failure_before_stream_is_a_counted_api_error(
    result: Any, dies: bool, status: int, code: str
) -> None:
    def answer() -> Any:
        local.llm.errored = dies
        if isinstance(result, Exception):
            raise result
        return result

    local = Local(answer)

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


async def test_dead_engine_differs_from_one_dying_during_request() -> None:
    """The relay tries other replicas for as long as it takes on the first, and once on the second."""
    local = Local(Frames(TOKEN), errored=True)

    error = await local.refusal()

    assert (error.status, error.code) == (503, "engine_dead")
    assert local.requests == []
