"""`EngineResponse` as a raw ASGI application: what it sends, and what it does when its client leaves."""

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest

from serve_app.api.dialect import ColdWait
from serve_app.api.engine_client import EngineReply, EngineRequest, Traffic
from serve_app.api.engine_response import EngineResponse, status_outcome
from serve_app.api.errors import ApiError
from tests.api.connection import SCOPE, Connection
from tests.api.traffic_log import TrafficLog
from tests.stub_engine import LIMIT_S, MuteEngine, StubEngine, failing, frames, stalled

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


async def leaves(
    engine: StubEngine, reached: asyncio.Event, connection: Connection, traffic: Traffic | None = None
) -> None:
    """The client leaves once `reached`; returns when the response has ended for it."""
    response = EngineResponse(engine, request(), traffic or Traffic())
    async with asyncio.timeout(LIMIT_S):
        running = asyncio.create_task(response(SCOPE, connection.receive, connection.send))
        await reached.wait()
        assert not engine.left.is_set()
        connection.leave()
        await running


@pytest.mark.parametrize(
    "answer", [frames(FIRST, SECOND, DONE), EngineReply(200, b"{}")], ids=["stream", "whole"]
)
async def test_traffic_hears_of_an_answered_request(answer: Any) -> None:
    traffic = TrafficLog()

    await exchange(StubEngine(answer), traffic=traffic)

    assert traffic.names == ["opened", "first_byte", "closed"]
    ttft_s, queued_s = traffic.seen["first_byte"]
    assert 0.25 <= ttft_s < 0.25 + LIMIT_S  # since the arrival
    assert queued_s == 0.0


@pytest.mark.parametrize(
    "answer",
    [frames(FIRST, SECOND, DONE), EngineReply(200, b"{}"), ApiError(400, "no")],
    ids=["stream", "whole", "error"],
)
async def test_body_is_released_with_first_byte_or_end(answer: Any) -> None:
    """An answer may take minutes, and nobody will send the request again."""
    asked, traffic, released = request(), TrafficLog(), []
    connection = Connection()

    response = EngineResponse(StubEngine(answer), asked, traffic, lambda: released.append(asked.body))
    await response(SCOPE, connection.receive, connection.send)

    assert traffic.seen["opened"] == (len(BODY),)
    assert asked.body == b""
    assert set(released) == {b""}


@pytest.mark.parametrize("status", [429, 503])
async def test_a_refusal_is_told_with_its_error(status: int) -> None:
    traffic = TrafficLog()
    error = ApiError(status, "no", code="queue_full")

    await exchange(StubEngine(error), traffic=traffic)

    assert traffic.names == ["opened", "rejected", "closed"]
    assert traffic.seen["rejected"] == (error,)


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


@pytest.mark.parametrize("engine", [MuteEngine(), StubEngine(stalled(FIRST))], ids=["mute", "stalled"])
async def test_a_client_that_leaves_ends_its_generation(engine: StubEngine) -> None:
    connection, traffic = Connection(), TrafficLog()
    reached = engine.entered if isinstance(engine, MuteEngine) else connection.body_arrived

    await leaves(engine, reached, connection, traffic)

    assert traffic.seen["closed"][0] == "abandoned"
    assert engine.cancelled
    assert connection.body == (b"" if isinstance(engine, MuteEngine) else FIRST)
    assert traffic.requests[-1].tell_wait is None  # it refers to the response


@pytest.mark.parametrize(
    ("last", "ended"),
    [(SECOND + DONE, "ok"), (ApiError(502, "lost").last_frames(), "error")],
    ids=["answer", "error"],
)
async def test_a_client_may_leave_or_expire_with_the_last_event(last: bytes, ended: str) -> None:
    """OpenAI's clients close the connection at `[DONE]`, a moment before the engine's stream ends."""
    connection, traffic = Connection(), TrafficLog()

    await leaves(StubEngine(stalled(last)), connection.body_arrived, connection, traffic)
    assert traffic.seen["closed"][0] == ended

    asked = request(timeout_s=0.5)
    connection = await exchange(StubEngine(stalled(FIRST, last)), asked)
    assert (connection.body, connection.complete) == (FIRST + last, True)
    assert asked.outcome == ended


async def test_untaken_last_event_is_no_answer() -> None:
    engine, connection, traffic = StubEngine(stalled(SECOND + DONE)), Connection(reads=False), TrafficLog()

    await leaves(engine, connection.body_arrived, connection, traffic)

    assert traffic.seen["closed"][0] == "abandoned"
    assert engine.cancelled


async def test_a_whole_answer_waits_for_its_client_without_the_engine() -> None:
    engine, connection, traffic = (
        StubEngine(EngineReply(200, b'{"ok":1}')),
        Connection(reads=False),
        TrafficLog(),
    )
    asked = request(timeout_s=0.3)
    reserved = Place()

    async with asyncio.timeout(LIMIT_S):
        response = EngineResponse(engine, asked, traffic, quota_use=reserved)  # type: ignore[arg-type]
        running = asyncio.create_task(response(SCOPE, connection.receive, connection.send))
        await connection.body_arrived.wait()
        await asyncio.sleep(0.1)  # beyond the deadline, which concerns the engine
        assert engine.left.is_set()
        assert asked.ttft_s is not None
        assert not reserved.settled
        connection.read()
        await running

    assert (connection.status, connection.body, connection.complete) == (200, b'{"ok":1}', True)
    assert (asked.outcome, reserved.settled) == ("ok", True)


async def test_a_client_that_leaves_an_unread_answer_has_abandoned_it() -> None:
    connection, asked = Connection(reads=False), request()

    async with asyncio.timeout(LIMIT_S):
        response = EngineResponse(StubEngine(EngineReply(200, b"{}")), asked, Traffic())
        running = asyncio.create_task(response(SCOPE, connection.receive, connection.send))
        await connection.body_arrived.wait()
        connection.leave()
        await running

    assert asked.outcome == "abandoned"


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
    engine, connection, traffic = Lingering(), Connection(), TrafficLog()
    response = EngineResponse(engine, request(), traffic)

    async with asyncio.timeout(LIMIT_S):
        running = asyncio.create_task(response(SCOPE, connection.receive, connection.send))
        await engine.entered.wait()
        running.cancel()
        await engine.ending.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

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
    traffic = TrafficLog()
    engine, connection = ColdStubEngine(frames(FIRST, DONE)), Connection()
    engine.stays = True
    response = EngineResponse(engine, request(wants_stream=True), traffic)

    async with asyncio.timeout(LIMIT_S):
        running = asyncio.create_task(response(SCOPE, connection.receive, connection.send))
        while connection.body != COMMENTS:
            await connection.body_arrived.wait()
            await asyncio.sleep(0)
        connection.leave()
        await running

    assert traffic.names == ["opened", "closed"]
    assert traffic.seen["closed"][0] == "abandoned"
    assert engine.cancelled
