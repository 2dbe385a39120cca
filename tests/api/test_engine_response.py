"""`EngineResponse` as a raw ASGI application: what it sends, and what it does when its client leaves."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from serve_app.api.dialect import ColdWait
from serve_app.api.engine_client import EngineReply, EngineRequest, Traffic
from serve_app.api.engine_response import EngineResponse, status_outcome
from serve_app.api.errors import ApiError
from tests.api.connection import SCOPE, Connection
from tests.api.traffic_log import TrafficLog
from tests.stub_engine import LIMIT_S, MuteEngine, StubEngine, failing, frames, stalled
from tests.timing import until

BODY = b'{"model":"a"}'
FIRST, SECOND, DONE = b'data: {"n":1}\n\n', b'data: {"n":2}\n\n', b"data: [DONE]\n\n"


def request(**changes: Any) -> EngineRequest:
    """A request that arrived a quarter of a second ago."""
    return EngineRequest("chat_completions", BODY, "r-1", time.perf_counter() - 0.25, **changes)


async def exchange(
    engine: StubEngine, asked: EngineRequest | None = None, traffic: Traffic | None = None
) -> Connection:
    connection = Connection()
    async with asyncio.timeout(LIMIT_S):
        response = EngineResponse(engine, asked or request(), traffic or Traffic())
        await response(SCOPE, connection.receive, connection.send)
    return connection


class Place:
    """A place in the limits of a key."""

    headers: Mapping[str, str] = {}
    settled = False

    def settle(self, request: EngineRequest) -> None:
        self.settled = True


def end_of(connection: Connection, before: bytes) -> str:
    """The code of the error event with which a stream ends after `before`."""
    assert connection.body.startswith(before)
    event, done, rest = connection.body.removeprefix(before).split(b"\n\n")
    assert (done, rest, connection.complete) == (b"data: [DONE]", b"", True)
    assert b"secret" not in event
    code: str = json.loads(event.removeprefix(b"event: error\ndata: "))["error"]["code"]
    return code


async def test_a_whole_reply_is_sent_with_its_length() -> None:
    engine = StubEngine(EngineReply(200, b'{"ok":1}', headers={"X-Extra": "1"}))

    connection = await exchange(engine)

    assert engine.requests == [request()]
    assert (connection.status, connection.body, connection.complete) == (200, b'{"ok":1}', True)
    expected = {"content-type": "application/json", "content-length": "8", "x-extra": "1"}
    assert connection.headers == expected
    assert engine.left.is_set()
    assert not engine.cancelled


async def test_a_stream_is_sent_chunk_by_chunk_as_it_comes() -> None:
    connection = await exchange(StubEngine(frames(FIRST, SECOND + DONE)))

    assert connection.status == 200
    assert [message["body"] for message in connection.sent[1:]] == [FIRST, SECOND + DONE, b""]
    assert [message["more_body"] for message in connection.sent[1:]] == [True, True, False]


@pytest.mark.parametrize(
    "error",
    [
        ZeroDivisionError("secret"),
        ApiError(502, "secret"),
        OSError("secret"),
        asyncio.CancelledError("secret"),
    ],
)
async def test_failure_within_a_stream_ends_in_an_error_event(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    engine = StubEngine(failing(error, FIRST))

    with caplog.at_level(logging.ERROR, "ray.serve"):
        connection = await exchange(engine)

    assert (connection.status, end_of(connection, FIRST)) == (200, "stream_failed")
    assert engine.left.is_set()


@asynccontextmanager
async def running(
    engine: StubEngine, connection: Connection, asked: EngineRequest | None = None, **more: Any
) -> AsyncIterator[asyncio.Task[None]]:
    """Run a response, and wait for its end."""
    traffic = more.pop("traffic", Traffic())
    response = EngineResponse(engine, asked or request(), traffic, **more)
    async with asyncio.timeout(LIMIT_S):
        task = asyncio.create_task(response(SCOPE, connection.receive, connection.send))
        yield task
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()


@pytest.mark.parametrize(
    "answer",
    [frames(FIRST, SECOND, DONE), EngineReply(200, b"{}"), ApiError(400, "no"), ApiError(429, "no")],
    ids=["stream", "whole", "error", "refusal"],
)
async def test_traffic_hears_of_each_step_and_the_body_is_released(answer: Any) -> None:
    """An answer may take minutes, and nobody will send the request again."""
    asked, traffic, released = request(), TrafficLog(), []
    connection = Connection()

    response = EngineResponse(StubEngine(answer), asked, traffic, lambda: released.append(asked.body))
    await response(SCOPE, connection.receive, connection.send)

    assert traffic.seen["opened"] == (len(BODY),)
    assert (asked.body, set(released)) == (b"", {b""})
    if isinstance(answer, ApiError):
        assert traffic.names == ["opened", *["rejected"] * (answer.status == 429), "closed"]
        assert traffic.seen.get("rejected", (answer,)) == (answer,)
        return
    assert traffic.names == ["opened", "first_byte", "closed"]
    ttft_s, queued_s = traffic.seen["first_byte"]
    assert 0.25 <= ttft_s < 0.25 + LIMIT_S  # since the arrival
    assert queued_s == 0.0


@pytest.mark.parametrize(
    ("answer", "ended"),
    [
        (EngineReply(200, b"{}"), "ok"),
        (frames(FIRST, SECOND, DONE), "ok"),
        (EngineReply(400, ApiError(400, "no").body()), "client_error"),
        (ApiError(422, "no"), "client_error"),
        (EngineReply(429, ApiError(429, "no").body()), "rejected"),
        (ApiError(429, "full", code="queue_full"), "rejected"),
        (EngineReply(500, ApiError(500, "no").body()), "error"),
        (ApiError(503, "no replica", code="model_unavailable"), "error"),
        # As the engine renders it, and as the relay does where the replica is lost.
        (frames(FIRST, ApiError(500, "no").frame(), DONE), "error"),
        (frames(FIRST, ApiError(502, "lost").last_frames()), "error"),
        (failing(OSError(32, "pipe"), FIRST), "error"),
        (frames(FIRST, SECOND), "error"),
        (ZeroDivisionError("engine"), "error"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_the_outcome_of_a_request_is_counted_once(answer: Any, ended: str) -> None:
    traffic = TrafficLog()

    with suppress(ZeroDivisionError):  # Starlette answers it
        await exchange(StubEngine(answer), traffic=traffic)

    assert traffic.names.count("closed") == 1
    assert traffic.seen["closed"][0] == ended


@pytest.mark.parametrize(
    ("answer", "reads", "body"),
    [
        (None, True, b""),  # the engine is deep in a long prefill
        (stalled(FIRST), True, FIRST),
        (stalled(SECOND + DONE), False, SECOND + DONE),  # a last event that nobody takes is no answer
        (EngineReply(200, b"{}"), False, b"{}"),
    ],
    ids=["mute", "stalled", "untaken last event", "unread answer"],
)
async def test_a_client_that_leaves_ends_its_generation(answer: Any, reads: bool, body: bytes) -> None:
    engine = MuteEngine() if answer is None else StubEngine(answer)
    connection, traffic = Connection(reads), TrafficLog()
    async with running(engine, connection, traffic=traffic):
        await (engine.entered if answer is None else connection.body_arrived).wait()
        connection.leave()

    assert traffic.seen["closed"][0] == "abandoned"
    assert engine.cancelled or isinstance(answer, EngineReply)
    assert (engine.left.is_set(), connection.body) == (True, body)
    assert traffic.requests[-1].tell_wait is None  # it refers to the response


@pytest.mark.parametrize(
    ("last", "ended"),
    [(SECOND + DONE, "ok"), (ApiError(502, "lost").last_frames(), "error")],
    ids=["answer", "error"],
)
async def test_a_client_may_leave_or_expire_with_the_last_event(last: bytes, ended: str) -> None:
    """OpenAI's clients close the connection at `[DONE]`, a moment before the engine's stream ends."""
    connection, asked = Connection(), request()
    async with running(StubEngine(stalled(last)), connection, asked):
        await connection.body_arrived.wait()
        connection.leave()
    assert asked.outcome == ended

    asked = request(timeout_s=0.5)
    connection = await exchange(StubEngine(stalled(FIRST, last)), asked)
    assert (connection.body, connection.complete) == (FIRST + last, True)
    assert asked.outcome == ended


async def test_a_whole_answer_waits_for_its_client_without_the_engine() -> None:
    engine, connection = StubEngine(EngineReply(200, b'{"ok":1}')), Connection(reads=False)
    asked, reserved = request(timeout_s=0.3), Place()
    async with running(engine, connection, asked, uses=[reserved]):
        await connection.body_arrived.wait()
        await asyncio.sleep(0.1)  # beyond the deadline, which concerns the engine
        assert engine.left.is_set()
        assert asked.ttft_s is not None
        assert not reserved.settled
        connection.read()

    assert (connection.status, connection.body, connection.complete) == (200, b'{"ok":1}', True)
    assert (asked.outcome, reserved.settled) == ("ok", True)


class Lingering(MuteEngine):
    """Takes its time to end a call that is cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.ending = asyncio.Event()

    async def _reply(self) -> EngineReply:
        try:
            return await super()._reply()
        finally:
            self.ending.set()
            await asyncio.Event().wait()


async def test_a_request_cancelled_twice_is_closed_once() -> None:
    engine, traffic = Lingering(), TrafficLog()
    async with running(engine, Connection(), traffic=traffic) as task:
        await engine.entered.wait()
        task.cancel()
        await engine.ending.wait()
        task.cancel()

    assert task.cancelled()
    assert traffic.names == ["opened", "closed"]
    assert traffic.seen["closed"][0] == "abandoned"


async def test_a_deadline_before_the_first_byte_is_a_408() -> None:
    engine, log = MuteEngine(), TrafficLog()
    asked = request(timeout_s=0.2)  # which has passed

    connection = await exchange(engine, asked, log)

    error = json.loads(connection.body)["error"]
    assert (connection.status, error["code"], connection.complete) == (408, "deadline_exceeded", True)
    assert error["message"] == "The answer was not complete within the 0.2 s of X-Request-Timeout-Seconds."
    assert connection.headers["x-should-retry"] == "false"
    assert engine.cancelled
    assert (asked.outcome, log.names) == ("client_error", ["opened", "closed"])


async def test_deadline_within_a_stream_ends_in_an_error_event() -> None:
    engine = StubEngine(stalled(FIRST, SECOND))
    asked = request(timeout_s=0.5)

    connection = await exchange(engine, asked)

    assert end_of(connection, FIRST + SECOND) == "deadline_exceeded"
    assert engine.left.is_set()
    assert asked.outcome == "client_error"


def test_a_status_tells_whose_fault_it_was() -> None:
    outcomes = {status: status_outcome(status) for status in range(200, 600)}

    assert outcomes.pop(429) == "rejected"
    assert {outcome for status, outcome in outcomes.items() if status < 400} == {"ok"}
    assert {outcome for status, outcome in outcomes.items() if 400 <= status < 500} == {"client_error"}
    assert {outcome for status, outcome in outcomes.items() if status >= 500} == {"error"}


# Queued for a cold start: comments, and then whatever follows.


WAITS = (ColdWait("tide", "imports", 12.0, 5.0), ColdWait("tide", "warm_up", None, 10.0))
COMMENTS = (
    b": waiting for a replica of tide: phase=imports eta_s=12 waited_s=5\n\n"
    b": waiting for a replica of tide: phase=warm_up eta_s=unknown waited_s=10\n\n"
)
LATE = ApiError(503, "too late", code="cold_wait_timeout", headers={"Retry-After": "42"})


class ColdStubEngine(StubEngine):
    """Holds a request, telling its client so, before it answers."""

    stays: bool = False

    async def _reply(self) -> EngineReply:
        request = self.request
        for wait in WAITS:
            if request.tell_wait is not None:
                await request.tell_wait(wait)
        if self.stays:
            await asyncio.Event().wait()
        request.queued_s += 12.5
        return await super()._reply()


async def queued(answer: Any, *, stream: bool = True, traffic: Traffic | None = None) -> Connection:
    return await exchange(ColdStubEngine(answer), request(wants_stream=stream), traffic)


async def test_a_queued_stream_begins_with_comments() -> None:
    traffic = TrafficLog()

    connection = await queued(frames(FIRST, DONE), traffic=traffic)

    assert connection.status == 200
    assert connection.body == COMMENTS + FIRST + DONE
    assert [message["type"] for message in connection.sent].count("http.response.start") == 1
    assert connection.headers == {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-cache, no-transform",
        "x-accel-buffering": "no",
    }
    assert traffic.names == ["opened", "first_byte", "closed"]
    assert traffic.seen["first_byte"][1] == 12.5
    assert traffic.seen["closed"] == ("ok", 12.5)


async def test_without_a_stream_the_answer_has_its_own_status() -> None:
    whole = await queued(EngineReply(200, b'{"ok":1}'), stream=False)
    assert (whole.status, whole.body) == (200, b'{"ok":1}')
    assert whole.headers["content-type"] == "application/json"

    refused = await queued(LATE, stream=False)
    assert (refused.status, refused.body, refused.complete) == (503, LATE.body(), True)
    assert (refused.headers["retry-after"], refused.headers["content-length"]) == (
        "42",
        str(len(LATE.body())),
    )


INVALID = ApiError(400, "temperature = 9", code="invalid_value").body().replace(b",", b",\n")


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (LATE, "cold_wait_timeout"),
        (EngineReply(400, INVALID), "invalid_value"),
        (ZeroDivisionError("secret"), "stream_failed"),
    ],
    ids=["refusal", "engine's", "unforeseen"],
)
async def test_failure_after_comments_is_an_error_event(
    answer: Any, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    connection = await queued(answer)

    assert (connection.status, end_of(connection, COMMENTS)) == (200, code)
    assert ("ZeroDivisionError" in caplog.text) == isinstance(answer, ZeroDivisionError)


async def test_comments_are_no_answer() -> None:
    """Their client has seen no token: the request is not served until one is sent."""
    traffic, connection = TrafficLog(), Connection()
    engine = ColdStubEngine(frames(FIRST, DONE))
    engine.stays = True
    async with running(engine, connection, request(wants_stream=True), traffic=traffic):
        await until(lambda: connection.body == COMMENTS)
        connection.leave()

    assert traffic.names == ["opened", "closed"]
    assert traffic.seen["closed"][0] == "abandoned"
    assert engine.cancelled
