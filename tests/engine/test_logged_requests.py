"""The lines of the request log that `LocalEngine` writes, by what became of the request."""

import asyncio
from types import SimpleNamespace

import pytest

from serve_app.api.engine_client import TraceContext
from serve_app.api.errors import ApiError
from tests.engine.local import DONE, FAILED, TOKEN, ErrorInfo, Frames, Local


def logged(local: Local) -> list[tuple[int | None, str]]:
    return [(line.status, line.outcome) for line in local.log.lines]


async def test_a_whole_answer_is_logged_when_it_has_been_sent() -> None:
    local = Local(ErrorInfo(message="any document", type="x", code=1))

    async with local.call():
        assert local.log.lines == []

    (line,) = local.log.lines
    assert (line.model, line.operation, line.request_id) == ("tide", "chat_completions", "r-1")
    assert (line.input_tokens, line.output_tokens) == (8, 3)
    assert line.e2e_s >= 0.5
    assert logged(local) == [(200, "completed")]


async def test_line_has_trace_and_expected_cached_tokens() -> None:
    local = Local(Frames(TOKEN, DONE))
    trace = TraceContext(f"00-{'1a' * 16}-{'2b' * 8}-01", "a=1")
    call = local.call(trace=trace, expected_cached_tokens=16)

    async with call as reply:
        assert [chunk async for chunk in reply.stream]

    (line,) = local.log.lines
    assert (line.trace_id, line.expected_cached_tokens) == ("1a" * 16, 16)
    assert local.asked.state.cached_tokens == line.cached_tokens == 0
    assert logged(local) == [(200, "completed")]


async def test_a_stream_left_early_is_logged_as_abandoned() -> None:
    local = Local(Frames(TOKEN, stalls=True))

    async with local.call() as reply:
        await anext(reply.stream)

    assert logged(local) == [(200, "abandoned")]


async def test_whole_answer_whose_client_left_is_abandoned() -> None:
    began = asyncio.Event()

    class Disconnecting(Frames):
        async def __anext__(self) -> str:
            began.set()
            try:
                return await super().__anext__()
            except asyncio.CancelledError:
                raise ValueError("Client disconnected") from None

    local = Local(Disconnecting(stalls=True))
    opening = asyncio.ensure_future(local.reply())
    await began.wait()

    opening.cancel()
    with pytest.raises(ApiError):
        await opening

    assert logged(local) == [(None, "abandoned")]


async def test_failures_are_logged_with_what_the_client_was_told() -> None:
    raising, refused = Local(ValueError("no")), Local(Frames(FAILED))
    later, broken = Local(Frames(TOKEN, FAILED, DONE)), Local(Frames(TOKEN, RuntimeError("gone")))

    await raising.refusal()
    await refused.refusal()
    await later.streamed()
    await broken.streamed()

    assert logged(raising) == [(400, "failed")]
    assert logged(refused) == [(500, "failed")]
    assert logged(later) == logged(broken) == [(200, "failed")]


async def test_failing_request_log_costs_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    local = Local(ErrorInfo(message="any document", type="x", code=1))
    local.client.request_log = SimpleNamespace()  # type: ignore[assignment]  # has no `add`

    assert (await local.reply()).status == 200
    assert (await local.reply()).status == 200

    assert caplog.text.count("the request log is incomplete") == 1
