"""`EngineResponse` as a raw ASGI application: what it sends, and what it does when its client leaves."""

import asyncio
import json
import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest

from serve_app.api.engine_client import OUTCOMES, EngineReply, EngineRequest, Outcome, Traffic
from serve_app.api.engine_response import EngineResponse, status_outcome, stream_outcome
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


async def test_a_whole_reply_is_sent_with_its_length() -> None:
    engine = StubEngine(EngineReply(200, b'{"ok":1}', headers={"X-Extra": "1"}))

    asked = request()

    connection = await exchange(engine, asked)

    assert engine.request is asked
    assert engine.requests == [request()]
    assert (connection.status, connection.body, connection.complete) == (200, b'{"ok":1}', True)
    assert connection.headers == {
        "content-type": "application/json",
        "content-length": "8",
        "x-extra": "1",
    }
    assert engine.left.is_set()
    assert not engine.cancelled


async def test_a_stream_is_sent_chunk_by_chunk_as_it_comes() -> None:
    connection = await exchange(StubEngine(frames(FIRST, SECOND + DONE)))

    assert connection.status == 200
    assert [message["body"] for message in connection.sent[1:]] == [FIRST, SECOND + DONE, b""]
    assert [message["more_body"] for message in connection.sent[1:]] == [True, True, False]


async def test_failure_before_the_first_byte_has_its_own_status() -> None:
    error = ApiError(503, "no replica", code="model_unavailable", headers={"Retry-After": "5"})

    connection = await exchange(StubEngine(error))

    assert (connection.status, connection.body, connection.complete) == (503, error.body(), True)
    assert connection.headers["retry-after"] == "5"
    assert connection.headers["content-length"] == str(len(error.body()))


@pytest.mark.parametrize("error", [ZeroDivisionError("secret"), ApiError(502, "secret"), OSError("secret")])
async def test_failure_within_a_stream_ends_in_an_error_event(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    engine = StubEngine(failing(error, FIRST))

    with caplog.at_level(logging.ERROR, "ray.serve"):
        connection = await exchange(engine)

    assert connection.status == 200
    first, event, done, rest = connection.body.split(b"\n\n")
    assert first + b"\n\n" == FIRST
    assert event.startswith(b"event: error\ndata: ")
    assert json.loads(event.removeprefix(b"event: error\ndata: "))["error"]["code"] == "stream_failed"
    assert (done, rest) == (b"data: [DONE]", b"")
    assert connection.complete
    assert b"secret" not in connection.body
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


async def test_a_client_that_stopped_reading_and_leaves_frees_its_generation() -> None:
    engine, connection = StubEngine(frames(FIRST, SECOND, DONE)), Connection(reads=False)

    await leaves(engine, connection.body_arrived, connection)

    assert engine.cancelled
    assert connection.body == FIRST


@pytest.mark.parametrize(
    "answer", [frames(FIRST, SECOND, DONE), EngineReply(200, b"{}")], ids=["stream", "whole"]
)
async def test_traffic_hears_of_an_answered_request(answer: Any) -> None:
    traffic = TrafficLog()

    await exchange(StubEngine(answer), traffic=traffic)

    assert traffic.names == ["opened", "first_byte", "closed"]
    ttft_s, held_s = traffic.seen["first_byte"]
    assert ttft_s >= 0.25
    assert held_s == 0.0


async def test_ttft_is_from_the_arrival_to_the_first_event(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = EngineRequest("chat_completions", BODY, "r-1", arrived=99.75)
    monkeypatch.setattr(
        "serve_app.api.engine_client.time", SimpleNamespace(perf_counter=iter([100.5]).__next__)
    )
    traffic = TrafficLog()

    await exchange(StubEngine(frames(FIRST, SECOND, DONE)), asked, traffic)

    assert traffic.seen["first_byte"] == (0.75, 0.0)


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


async def test_an_unforeseen_failure_closes_the_request() -> None:
    traffic = TrafficLog()

    with pytest.raises(ZeroDivisionError):
        await exchange(StubEngine(ZeroDivisionError("engine")), traffic=traffic)

    assert traffic.names == ["opened", "closed"]
    assert traffic.seen["closed"][0] == "error"


async def outcome(answer: Any) -> Any:
    traffic = TrafficLog()
    await exchange(StubEngine(answer), traffic=traffic)
    assert traffic.names.count("closed") == 1
    return traffic.seen["closed"][0]


@pytest.mark.parametrize(
    ("answer", "ended"),
    [
        (EngineReply(200, b"{}"), "ok"),
        (frames(FIRST, SECOND, DONE), "ok"),
        (EngineReply(400, b"{}"), "client_error"),
        (ApiError(422, "no"), "client_error"),
        (EngineReply(429, b"{}"), "rejected"),
        (ApiError(429, "full", code="queue_full"), "rejected"),
        (EngineReply(500, b"{}"), "error"),
        (ApiError(503, "no replica", code="model_unavailable"), "error"),
        # As the engine renders it, and as the relay does where the replica is lost.
        (frames(FIRST, ApiError(500, "no").frame(), DONE), "error"),
        (frames(FIRST, ApiError(502, "lost").last_frames()), "error"),
        (failing(OSError(32, "pipe"), FIRST), "error"),
        (frames(FIRST, SECOND), "error"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_the_outcome_of_a_request_is_counted_once(answer: Any, ended: str) -> None:
    assert await outcome(answer) == ended


@pytest.mark.parametrize("engine", [MuteEngine(), StubEngine(stalled(FIRST))], ids=["mute", "stalled"])
async def test_a_client_that_leaves_ends_its_generation(engine: StubEngine) -> None:
    connection, traffic = Connection(), TrafficLog()
    reached = engine.entered if isinstance(engine, MuteEngine) else connection.body_arrived

    await leaves(engine, reached, connection, traffic)

    assert traffic.seen["closed"][0] == "abandoned"
    assert engine.cancelled
    assert connection.body == (b"" if isinstance(engine, MuteEngine) else FIRST)
    assert traffic.requests[-1].state.tell_wait is None  # it refers to the response


@pytest.mark.parametrize(
    ("last", "ended"),
    [(SECOND + DONE, "ok"), (ApiError(502, "lost").last_frames(), "error")],
    ids=["answer", "error"],
)
async def test_a_client_may_leave_with_the_last_event(last: bytes, ended: str) -> None:
    """OpenAI's clients close the connection at `[DONE]`, a moment before the engine's stream ends."""
    connection, traffic = Connection(), TrafficLog()

    await leaves(StubEngine(stalled(last)), connection.body_arrived, connection, traffic)

    assert traffic.seen["closed"][0] == ended


async def test_untaken_last_event_is_no_answer() -> None:
    connection, traffic = Connection(reads=False), TrafficLog()

    await leaves(StubEngine(stalled(SECOND + DONE)), connection.body_arrived, connection, traffic)

    assert traffic.seen["closed"][0] == "abandoned"


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


async def test_a_call_that_ray_cancels_is_abandoned() -> None:
    engine, connection, traffic = MuteEngine(), Connection(), TrafficLog()
    response = EngineResponse(engine, request(), traffic)

    async with asyncio.timeout(LIMIT_S):
        running = asyncio.create_task(response(SCOPE, connection.receive, connection.send))
        await engine.entered.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    assert engine.cancelled
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
    assert (asked.state.outcome, log.names) == ("client_error", ["opened", "closed"])


async def test_deadline_within_a_stream_ends_in_an_error_event() -> None:
    engine = StubEngine(stalled(FIRST, SECOND))
    asked = request(timeout_s=0.5)

    connection = await exchange(engine, asked)

    assert connection.body.startswith(FIRST + SECOND + b"event: error\ndata: ")
    event, done = connection.body.removeprefix(FIRST + SECOND).split(b"\n\n")[:2]
    assert json.loads(event.removeprefix(b"event: error\ndata: "))["error"]["code"] == "deadline_exceeded"
    assert (done, connection.complete) == (b"data: [DONE]", True)
    assert engine.left.is_set()
    assert asked.state.outcome == "client_error"


async def test_a_deadline_after_the_last_event_adds_nothing() -> None:
    asked = request(timeout_s=0.5)

    connection = await exchange(StubEngine(stalled(FIRST, DONE)), asked)

    assert (connection.body, connection.complete) == (FIRST + DONE, True)
    assert asked.state.outcome == "ok"


ERROR = ApiError(500, "no", code="engine_error").frame()


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, "ok"),
        (399, "ok"),
        (400, "client_error"),
        (404, "client_error"),
        (422, "client_error"),
        (428, "client_error"),
        (429, "rejected"),
        (430, "client_error"),
        (499, "client_error"),
        (500, "error"),
        (502, "error"),
        (503, "error"),
    ],
)
def test_a_status_tells_whose_fault_it_was(status: int, outcome: Outcome) -> None:
    assert status_outcome(status) == outcome
    assert outcome in OUTCOMES


@pytest.mark.parametrize(
    "chunks",
    [
        (b"", DONE),
        (FIRST, DONE),
        (FIRST, FIRST + DONE),
        (b"", FIRST + FIRST + DONE),
        (FIRST + FIRST, DONE),
        # Text is within JSON, where a line break is two characters.
        (b'data: {"content":"\\n\\nevent: error\\ndata: [DONE]\\n\\n"}\n\n', DONE),
        (b'data: {"content":"event: error"}\n\n', FIRST + DONE),
        # A comment of a held request, however it was cut.
        (b": waiting for a replica\n\n", FIRST + DONE),
    ],
)
def test_a_stream_that_ends_with_done_is_ok(chunks: tuple[bytes, bytes]) -> None:
    assert stream_outcome(*chunks) == "ok"


@pytest.mark.parametrize(
    "chunks",
    [
        (b"", ERROR + DONE),
        (ERROR, DONE),
        (FIRST, ERROR + DONE),
        (FIRST, FIRST + ERROR + DONE),
        (FIRST + ERROR, DONE),
        (FIRST + FIRST + ERROR, DONE),
        (FIRST, ApiError(502, "lost\n\nlost", code="replica_lost").last_frames()),
    ],
)
def test_an_error_event_before_done_is_an_error(
    chunks: tuple[bytes, bytes],
) -> None:
    assert stream_outcome(*chunks) == "error"
