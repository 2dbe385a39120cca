"""`LocalEngine` around a fake of vLLM's handler: replies, frames, failures, and the lines of the log."""

import asyncio
import json
import signal
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.datastructures import State
from vllm.v1.engine.exceptions import EngineDeadError

from serve_app.api.engine_client import OPERATIONS, SPEECH_OPERATIONS, Operation
from serve_app.api.errors import ApiError
from serve_app.api.trace import TraceContext
from serve_app.engine.chat_operations import Serving
from serve_app.engine.local_client import LocalEngine
from serve_app.engine.pooling_operations import TASKS
from serve_app.engine.speech_operations import SPEECH
from serve_app.settings.tree import ModelSettings
from tests.engine.calls import engine_call
from tests.engine.local import DOCUMENT, DONE, FAILED, TOKEN, USAGE, ErrorInfo, ErrorResponse, Frames, Local


def refused_by_vllm(status: int) -> ErrorResponse:
    return ErrorResponse(error=ErrorInfo(message="no", type="any", code=status))


async def test_whole_answer_is_logged_once_sent() -> None:
    local = Local(DOCUMENT)

    async with local.call() as reply:
        assert (reply.status, json.loads(reply.body)["message"]) == (200, "any document")
        assert local.log.lines == []

    (line,) = local.log.lines
    assert (line.model, line.operation, line.request_id) == ("tide", "chat_completions", "r-1")
    assert (line.input_tokens, line.output_tokens) == (8, 3)
    assert line.e2e_s >= 0.5
    assert local.logged == [(200, "completed")]


async def test_stream_has_latency_in_its_usage_frame_and_a_line() -> None:
    frames = Frames(TOKEN, USAGE, DONE)
    local = Local(frames)
    trace = TraceContext(f"00-{'1a' * 16}-{'2b' * 8}-01", "a=1")

    async with local.call(trace=trace, expected_cached_tokens=16) as reply:
        token, usage, done = [chunk async for chunk in reply.stream]

    assert (token, done) == (TOKEN.encode(), DONE.encode())
    latency = json.loads(usage.removeprefix(b"data: "))["latency"]
    assert latency["tokens_generated"] == 2
    assert latency["ttft_ms"] >= 500  # the half second the request had waited on its way here
    assert frames.closed
    (line,) = local.log.lines
    assert (line.trace_id, line.expected_cached_tokens) == ("1a" * 16, 16)
    assert local.asked.counts.cached == line.cached_tokens == 0
    assert local.logged == [(200, "completed")]


@pytest.mark.parametrize("read", [0, 1])
async def test_leaving_a_stream_early_closes_it_in_the_engine(read: int) -> None:
    frames = Frames(TOKEN, stalls=True)
    local = Local(frames)

    async with local.call() as reply:
        for _ in range(read):
            await anext(reply.stream)
        assert not frames.closed

    assert frames.closed
    assert local.logged == [(200, "abandoned")]


@pytest.mark.parametrize("converts", [False, True], ids=["cancelled", "as vLLM's handlers"])
async def test_client_that_leaves_before_the_answer_is_abandoned(converts: bool) -> None:
    class Disconnecting(Frames):
        async def __anext__(self) -> str:
            began.set()
            try:
                return await super().__anext__()
            except asyncio.CancelledError:
                if converts:
                    raise ValueError("Client disconnected") from None
                raise

    began, frames = asyncio.Event(), Disconnecting(stalls=True)
    local = Local(frames)
    opening = asyncio.ensure_future(local.reply())
    await began.wait()

    opening.cancel()
    with pytest.raises(ApiError if converts else asyncio.CancelledError):
        await opening

    assert frames.closed
    assert local.logged == [(None, "abandoned")]


@pytest.mark.parametrize(
    ("result", "dies", "status", "code"),
    [
        (refused_by_vllm(400), False, 400, "invalid_value"),
        (refused_by_vllm(501), False, 400, "unsupported_feature"),
        (ValueError("no"), False, 400, "invalid_value"),
        (RuntimeError("no"), False, 500, "engine_error"),
        (Frames(FAILED, DONE), False, 500, "engine_error"),
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
    assert local.logged == [(status, "failed")]


@pytest.mark.parametrize(
    ("failing", "code", "message"),
    [
        (FAILED, "engine_error", "gone wrong"),
        # With a broken connection the ingress would report a lost replica.
        (KeyError("bug"), "stream_failed", "The server failed while streaming this answer."),
    ],
    ids=["vLLM's", "ours"],
)
async def test_failure_within_a_stream_is_a_counted_event(
    failing: str | Exception, code: str, message: str
) -> None:
    local = Local(Frames(TOKEN, failing, DONE))

    _, *rest = await local.streamed()

    event, done, end = b"".join(rest).split(b"\n\n")
    error = json.loads(event.removeprefix(b"event: error\ndata: "))["error"]
    assert (error["code"], error["message"]) == (code, message)
    assert (done, end) == (b"data: [DONE]", b"")
    assert [error.code for error in local.errors] == [code]
    assert local.asked.lost == ""
    assert local.logged == [(200, "failed")]


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
    assert local.asked.lost == code


async def test_dead_engine_differs_from_one_dying_during_request() -> None:
    """A request that arrived after the death does not spend its retry budget."""
    local = Local(Frames(TOKEN), errored=True)

    error = await local.refusal()

    assert (error.status, error.code) == (503, "engine_dead")
    assert local.handled == 0


async def test_failing_request_log_costs_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    local = Local(DOCUMENT)
    local.client.request_log = SimpleNamespace()  # type: ignore[assignment]  # has no `add`

    for _ in range(2):
        assert (await local.reply()).status == 200

    assert caplog.text.count("the request log is incomplete") == 1


NOT_JSON = [
    b'{"a\xff":null}',
    b'{"\\ud800":null}',
    b'{"messages":[{"role":"user","content":"\xff"}],"image_url":null}',
    b'{"input":"\xff","query":"\xff","documents":["\xff"],"prompt":"\xff","tokens":["\xff"],"a":null}',
    b'{"messages":[{"role":"user","content":' + b"[" * 5000 + b"null",
    b"\xff",
    b"",
]


@pytest.mark.parametrize("body", NOT_JSON, ids=lambda body: str(body)[:30])
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_bytes_that_are_no_json_are_no_fault_of_the_engine(
    serving: Serving, operation: Operation, body: bytes
) -> None:
    if operation in SPEECH_OPERATIONS:
        body += b"\nRIFF"
    names = [name for name, *_ in TASKS.values()] + [f"openai_serving_{name}" for name, _ in SPEECH.values()]
    state = State(
        vars(serving.state)["_state"] | dict.fromkeys(names, object())
    )  # the tiny model has no such task
    engine = LocalEngine(replace(serving, state=state), ModelSettings(name="tide"), lambda _: None)

    with pytest.raises(ApiError) as caught:
        async with engine.call(engine_call(operation, body, "r-1")):
            pass

    assert caught.value.status == 400
    assert "JSON" in caught.value.message or "nested too deeply" in caught.value.message
