"""Anthropic's Messages over stub engines: headers, errors from everywhere, and the frames of streams."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from serve_app.api.api_keys import ApiKeyFile
from serve_app.api.dialect import ColdWait
from serve_app.api.engine_client import EngineReply
from serve_app.api.errors import ApiError
from tests.api.server import Server
from tests.api.traffic_log import TrafficLog
from tests.stub_engine import StubEngine, frames

PATHS = ("/v1/messages", "/v1/messages/count_tokens")
BODY = {"model": "tide", "max_tokens": 5, "messages": [{"role": "user", "content": "sea"}]}
START = b'event: message_start\ndata: {"type":"message_start"}\n\n'
DELTA = b'event: content_block_delta\ndata: {"type":"content_block_delta"}\n\n'
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
KEY = "sk-anthropic"


def error_of(reply: httpx.Response) -> dict[str, Any]:
    """The error of a reply, having checked Anthropic's shape and the request's id."""
    document = reply.json()
    assert set(document) == {"type", "error", "request_id"}
    assert document["type"] == "error"
    assert document["request_id"] == reply.headers["request-id"] == reply.headers["x-request-id"]
    error: dict[str, Any] = document["error"]
    assert set(error) == {"type", "message"}
    return error


async def failing(error: Exception) -> httpx.Response:
    return await Server(chat=StubEngine(error)).http.post(PATHS[0], json=BODY)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (404, "not_found_error"),
        (408, "timeout_error"),
        (409, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
    ],
)
async def test_an_error_has_its_type_and_keeps_its_headers(status: int, kind: str) -> None:
    reply = await failing(ApiError(status, "no", headers={"Retry-After": "3"}))

    assert reply.status_code == status
    assert error_of(reply) == {"type": kind, "message": "no"}
    assert reply.headers["retry-after"] == "3"


@pytest.mark.parametrize(
    ("message", "told"),
    [("must be positive", "max_tokens: must be positive"), ("max_tokens = 0: no", "max_tokens = 0: no")],
)
async def test_a_message_names_the_field_that_the_shape_has_no_place_for(message: str, told: str) -> None:
    assert error_of(await failing(ApiError(400, message, param="max_tokens")))["message"] == told


async def test_the_error_of_an_engine_replica_is_translated() -> None:
    sent = ApiError(400, "too long", param="messages", code="context_length_exceeded").body()
    server = Server(chat=StubEngine(EngineReply(400, sent)))

    reply = await server.http.post(PATHS[0], json=BODY)

    assert error_of(reply) == {"type": "invalid_request_error", "message": "messages: too long"}


@pytest.mark.parametrize("path", PATHS)
async def test_errors_before_an_engine_are_anthropics(path: str) -> None:
    async with Server(listens_on="127.0.0.1").http as http:
        json_of, to = {"Content-Type": "application/json"}, "http://localhost"
        found = {
            "not JSON": await http.post(to + path, content=b"{", headers=json_of),
            "no such model": await http.post(to + path, json={**BODY, "model": "nope"}),
            "too large": await http.post(to + path, json={**BODY, "x": "y" * 5000}),
            "a form": await http.post(to + path, content=b"a=b", headers={"Content-Type": "text/plain"}),
            "wrong method": await http.get(to + path),
            "wrong host": await http.post("http://elsewhere" + path, json=BODY),
            "wrong page": await http.post(to + path, json=BODY, headers={"Origin": "https://evil"}),
        }

    assert {name: (reply.status_code, error_of(reply)["type"]) for name, reply in found.items()} == {
        "not JSON": (400, "invalid_request_error"),
        "no such model": (404, "not_found_error"),
        "too large": (413, "request_too_large"),
        "a form": (415, "invalid_request_error"),
        "wrong method": (405, "invalid_request_error"),
        "wrong host": (421, "invalid_request_error"),
        "wrong page": (403, "permission_error"),
    }


@pytest.mark.parametrize("header", [{"X-Api-Key": KEY}, {"Authorization": f"Bearer {KEY}"}])
@pytest.mark.parametrize("path", PATHS)
async def test_both_headers_for_a_key_are_accepted(tmp_path: Path, path: str, header: dict[str, str]) -> None:
    file = tmp_path / "keys"
    file.write_text(KEY)
    async with Server(api_keys=ApiKeyFile(str(file))).http as http:
        versions = {"Anthropic-Version": "2023-06-01", "Anthropic-Beta": "any-1,other-2"}
        reply = await http.post(f"{path}?beta=true", json=BODY, headers={**header, **versions})
        refused = await http.post(path, json=BODY, headers={"X-Api-Key": "sk-other"})

    assert reply.status_code == 200
    assert reply.headers["request-id"] == reply.headers["x-request-id"]
    assert (refused.status_code, error_of(refused)["type"]) == (401, "authentication_error")


async def test_other_paths_have_no_header_of_anthropic(server: Server) -> None:
    reply = await server.http.post("/v1/chat/completions", json=BODY)

    assert "request-id" not in reply.headers


async def test_the_engine_is_asked_for_a_stream_with_the_bound_of_its_answer(server: Server) -> None:
    await server.http.post(PATHS[0], json={**BODY, "stream": True})
    await server.http.post(PATHS[1], json={**BODY, "stream": True})

    create, count = server.chat.requests
    assert (create.wants_stream, count.wants_stream) == (True, False)
    assert create.prefix is not None
    assert count.prefix is None


async def streamed(*chunks: bytes) -> tuple[bytes, str | None]:
    """What a client gets of a stream, and the outcome of its request."""
    traffic = TrafficLog()
    server = Server(chat=StubEngine(frames(*chunks)), traffic={"tide": traffic})
    reply = await server.http.post(PATHS[0], json={**BODY, "stream": True})
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["request-id"]
    return reply.content, server.chat.request.outcome


@pytest.mark.parametrize("chunks", [(START, DELTA, STOP), (START + DELTA + STOP,), (START, DELTA + STOP)])
async def test_a_stream_ends_with_message_stop(chunks: tuple[bytes, ...]) -> None:
    content, outcome = await streamed(*chunks)

    assert content.startswith(START + DELTA + STOP)
    assert b"[DONE]" not in content
    assert outcome == "ok"


async def test_a_stream_without_message_stop_is_an_error() -> None:
    assert (await streamed(START, DELTA))[1] == "error"


async def test_an_engine_that_fails_within_a_stream_ends_it_with_an_error_event() -> None:
    async def broken() -> Any:
        yield START
        raise RuntimeError("bug")

    server = Server(chat=StubEngine(broken))
    reply = await server.http.post(PATHS[0], json={**BODY, "stream": True})

    start, last = reply.content.removesuffix(b"\n\n").split(b"\n\n")
    assert start + b"\n\n" == START
    event, data = last.split(b"\n")
    assert event == b"event: error"
    assert json.loads(data.removeprefix(b"data: "))["error"]["type"] == "api_error"
    assert server.chat.request.outcome == "error"


class WaitingEngine(StubEngine):
    """Tells of a wait twice before it answers."""

    async def _reply(self) -> EngineReply:
        tell = self.request.tell_wait
        assert tell is not None
        for waited_s in (1.0, 2.0):
            await tell(ColdWait("tide", "imports", 30.0, waited_s))
        return await super()._reply()


PINGS = b"event: ping", b'data: {"type":"ping"}'


@pytest.mark.parametrize(
    ("answer", "last"),
    [(frames(START, STOP), STOP.split(b"\n")[0]), (ApiError(503, "no replica"), b"event: error")],
)
async def test_a_client_gets_pings_while_a_model_starts(answer: Any, last: bytes) -> None:
    server = Server(chat=WaitingEngine(answer))
    reply = await server.http.post(PATHS[0], json={**BODY, "stream": True})

    lines = [line for line in reply.content.split(b"\n") if line and not line.startswith(b":")]
    assert tuple(lines[:4]) == PINGS * 2
    assert last in lines[4:]
    assert b": waiting for a replica of tide: phase=imports eta_s=30 waited_s=2" in reply.content


@pytest.mark.parametrize(
    ("path", "status"), [*((path, 200) for path in PATHS), ("/v1/chat/completions", 400)]
)
async def test_messages_may_have_more_objects_than_other_bodies(path: str, status: int) -> None:
    server = Server(max_body_bytes=1 << 20)
    turn = {"role": "user", "content": [{"type": "text", "text": "sea"}]}  # three objects and lists
    reply = await server.http.post(path, json={**BODY, "messages": [turn] * 2700})
    assert reply.status_code == status

    refused = await server.http.post(path, json={**BODY, "messages": [turn] * 2800})
    assert refused.status_code == 400
    assert "objects and lists; at most" in refused.json()["error"]["message"]
