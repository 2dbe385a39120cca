"""What a client is sent while its request is held, and what may follow it."""

import asyncio
import json
import logging
from typing import Any

import pytest

from serve_app.api.engine_client import ColdWait, EngineReply, EngineRequest, Traffic
from serve_app.api.engine_response import EngineResponse
from serve_app.api.errors import ApiError
from tests.api.connection import SCOPE, Connection
from tests.api.server import Server
from tests.api.traffic_log import TrafficLog
from tests.stub_engine import LIMIT_S, StubEngine, frames

BODY = b'{"model":"tide","stream":true}'
WAITS = (ColdWait("tide", "imports", 12.0, 5.0), ColdWait("tide", "warm_up", None, 10.0))
COMMENTS = (
    b": waiting for a replica of tide: phase=imports eta_s=12 waited_s=5\n\n"
    b": waiting for a replica of tide: phase=warm_up eta_s=unknown waited_s=10\n\n"
)
FIRST, DONE = b'data: {"n":1}\n\n', b"data: [DONE]\n\n"
LATE = ApiError(503, "too late", code="cold_wait_timeout", headers={"Retry-After": "42"})


class ColdStubEngine(StubEngine):
    """Holds a request, telling its client so, before it answers."""

    stays: bool = False

    async def _reply(self) -> EngineReply:
        request = self.request
        for wait in WAITS:
            if request.state.tell_wait is not None:
                await request.state.tell_wait(wait)
        if self.stays:
            await asyncio.Event().wait()
        request.state.queued_s += 12.5
        return await super()._reply()


def request(wants_stream: bool = True, timeout_s: float | None = None) -> EngineRequest:
    return EngineRequest("chat_completions", BODY, "r-1", wants_stream=wants_stream, timeout_s=timeout_s)


async def exchange(answer: Any, *, stream: bool = True, traffic: Traffic | None = None) -> Connection:
    connection = Connection()
    async with asyncio.timeout(LIMIT_S):
        response = EngineResponse(ColdStubEngine(answer), request(stream), traffic or Traffic())
        await response(SCOPE, connection.receive, connection.send)
    assert connection.complete
    return connection


def error_event(frame: bytes) -> dict[str, Any]:
    assert frame.startswith(b"event: error\ndata: ")
    error: dict[str, Any] = json.loads(frame.removeprefix(b"event: error\ndata: "))["error"]
    return error


async def test_a_queued_stream_begins_with_comments() -> None:
    connection = await exchange(frames(FIRST, DONE))

    assert connection.status == 200
    assert connection.body == COMMENTS + FIRST + DONE
    assert [message["type"] for message in connection.sent].count("http.response.start") == 1
    assert connection.headers == {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-cache, no-transform",
        "x-accel-buffering": "no",
    }


async def test_no_comments_without_a_stream() -> None:
    whole = await exchange(EngineReply(200, b'{"ok":1}'), stream=False)
    assert (whole.status, whole.body) == (200, b'{"ok":1}')
    assert whole.headers["content-type"] == "application/json"

    refused = await exchange(LATE, stream=False)
    assert (refused.status, refused.body, refused.headers["retry-after"]) == (503, LATE.body(), "42")


async def test_a_refusal_after_comments_is_an_error_event() -> None:
    connection = await exchange(LATE)

    assert connection.status == 200
    assert connection.body == COMMENTS + LATE.last_frames()


async def test_an_engines_error_after_comments_is_an_error_event() -> None:
    body = ApiError(400, "temperature = 9", code="invalid_value").body().replace(b",", b",\n")

    connection = await exchange(EngineReply(400, body))

    rest = connection.body.removeprefix(COMMENTS)
    event, done, end = rest.split(b"\n\n")
    assert error_event(event)["code"] == "invalid_value"
    assert (done, end) == (b"data: [DONE]", b"")


async def test_an_unforeseen_failure_after_comments_is_an_error_event(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.ERROR, "ray.serve"):
        connection = await exchange(ZeroDivisionError("secret"))

    rest = connection.body.removeprefix(COMMENTS)
    event, done, end = rest.split(b"\n\n")
    assert error_event(event)["code"] == "stream_failed"
    assert (done, end) == (b"data: [DONE]", b"")
    assert b"secret" not in connection.body
    assert "ZeroDivisionError" in caplog.text


async def test_comments_are_no_answer() -> None:
    """Their client has seen no token: the request is not served until one is sent."""
    traffic = TrafficLog()
    engine, connection = ColdStubEngine(frames(FIRST, DONE)), Connection()
    engine.stays = True
    response = EngineResponse(engine, request(), traffic)

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


async def test_traffic_hears_of_the_queue_time() -> None:
    traffic = TrafficLog()

    await exchange(frames(FIRST, DONE), traffic=traffic)

    assert traffic.names == ["opened", "first_byte", "closed"]
    assert traffic.seen["first_byte"][1] == 12.5
    assert traffic.seen["closed"] == ("ok", 12.5)


@pytest.mark.parametrize(
    ("path", "body", "commented"),
    [
        ("/v1/chat/completions", {"model": "tide", "stream": True}, True),
        ("/v1/completions", {"model": "tide", "stream": True}, True),
        ("/generate", {"prompt": "sea", "stream": True}, True),
        ("/v1/chat/completions", {"model": "tide"}, False),
        ("/v1/chat/completions", {"model": "tide", "stream": False}, False),
        ("/generate", {"prompt": "sea"}, False),
        # There is no stream to ask for.
        ("/v1/embeddings", {"model": "tide", "stream": True}, False),
        ("/tokenize", {"model": "tide", "stream": True}, False),
    ],
)
async def test_who_asks_for_a_stream_gets_comments(path: str, body: dict[str, Any], commented: bool) -> None:
    server = Server(chat=ColdStubEngine(EngineReply(200, b"{}")))
    async with server.http:
        reply = await server.http.post(path, json=body)

    assert reply.content.startswith(b": waiting for a replica") is commented
    assert reply.headers["x-request-id"]


async def test_request_refused_before_its_model_is_no_traffic() -> None:
    tide = TrafficLog()
    server = Server(traffic={"tide": tide})
    async with server.http:
        await server.http.post("/v1/completions", json={"model": "nope"})
        await server.http.post("/v1/completions", content=b"{nope")

    assert tide.names == []
