"""Forms with speech over stub engines: the bodies that reach an engine, and the forms that are refused."""

import json
from typing import Any

import pytest

from serve_app.api.engine_client import EngineReply
from serve_app.api.request_head import RequestTraces
from serve_app.api.request_trace import RequestTrace
from serve_app.api.upload import fields_of, file_of
from serve_app.wire import spans as names
from tests.api.server import Server, error_of
from tests.stub_engine import frames

PATH = "/v1/audio/transcriptions"
FILE = b"RIFF\n\x00\xff{[,[\r\n--not the boundary\n"
FORM = {"Content-Type": "multipart/form-data; boundary=b"}


def part(name: str, value: bytes, filename: str = "") -> bytes:
    named = f'; filename="{filename}"' if filename else ""
    head = f'--b\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'
    return head.encode() + value + b"\r\n"


MODEL, SPEECH, END = part("model", b"tide"), part("file", FILE, "sea.wav"), b"--b--\r\n"


@pytest.mark.parametrize("operation", ["transcriptions", "translations"])
async def test_fields_and_file_reach_the_engine(server: Server, operation: str) -> None:
    granularities = [part("timestamp_granularities[]", value) for value in (b"word", b"segment")]
    form = b"".join([part("language", b"de"), SPEECH, MODEL, *granularities, END])

    reply = await server.http.post(f"/v1/audio/{operation}", content=form, headers=FORM)

    assert (reply.status_code, reply.json()) == (200, {"from": "chat"})
    (request,) = server.chat.requests
    assert (request.operation, request.prefix) == (operation, None)
    assert file_of(request.body) == FILE
    assert json.loads(fields_of(request.body)) == {
        "model": "tide",
        "language": "de",
        "timestamp_granularities[]": ["word", "segment"],
    }


@pytest.mark.parametrize(
    ("given", "stream"), [(b"true", True), (b"True", True), (b"1", True), (b"false", False), (b"x", False)]
)
async def test_stream_is_asked_for_by_a_text(server: Server, given: bytes, stream: bool) -> None:
    server.chat.answer = frames(b'data: {"a":1}\n\n', b"data: [DONE]\n\n") if stream else EngineReply(200)

    reply = await server.http.post(PATH, content=MODEL + SPEECH + part("stream", given) + END, headers=FORM)

    assert reply.headers["content-type"].startswith("text/event-stream") is stream
    assert server.chat.requests[0].wants_stream is stream


@pytest.mark.parametrize(
    ("form", "status", "param", "code"),
    [
        (MODEL + END, 400, "file", "missing_field"),
        (MODEL + part("file", b"", "sea.wav") + END, 400, "file", "invalid_value"),
        (MODEL + SPEECH + SPEECH + END, 400, "file", "invalid_value"),
        (MODEL + part("file", b"x" * 5000, "sea.wav") + END, 413, "file", "file_too_large"),
        (part("model", b"nope") + SPEECH + END, 404, "model", "model_not_found"),
        (SPEECH + END, 400, "model", "missing_field"),
        (MODEL + SPEECH, 400, None, "invalid_form"),
        (b"no form", 400, None, "invalid_form"),
        (b"", 400, None, "invalid_form"),
        (MODEL + part("prompt", b"x" * 4097) + SPEECH + END, 400, "prompt", "invalid_value"),
        (part("a", b"b") * 33 + END, 400, None, "invalid_form"),
    ],
)
async def test_odd_form_is_refused(
    server: Server, form: bytes, status: int, param: str | None, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    reply = await server.http.post(PATH, content=form, headers=FORM)

    error = error_of(reply)
    assert (reply.status_code, error["param"], error["code"]) == (status, param, code)
    if status == 413:
        assert "4096 bytes (http.max_body_bytes)" in error["message"]
    assert server.chat.requests == []
    assert server.app.state.endpoints.memory.used_bytes == 0
    assert caplog.messages == []  # a client could fill the log


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data", "text/plain"])
async def test_body_that_is_no_form_gets_415(server: Server, kind: str) -> None:
    reply = await server.http.post(PATH, content=b"{}", headers={"Content-Type": kind})

    assert reply.status_code == 415
    assert "multipart/form-data with a boundary" in error_of(reply)["message"]


async def test_memory_of_bodies_bounds_forms() -> None:
    server = Server(max_body_bytes=1 << 20, max_body_memory_bytes=1 << 20)
    large = MODEL + part("file", b"x" * 600_000, "sea.wav") + END

    async with server.http:
        declared = await server.http.post(PATH, content=large, headers=FORM)

        async def pieces() -> Any:
            yield large

        undeclared = await server.http.post(PATH, content=pieces(), headers=FORM)

    for reply in (declared, undeclared):
        assert (reply.status_code, error_of(reply)["code"]) == (413, "body_too_large")
        assert "half of http.max_body_memory_bytes = 1048576" in error_of(reply)["message"]
    assert server.app.state.endpoints.memory.used_bytes == 0


async def test_audio_counts_as_few_bytes_of_a_prompt(server: Server) -> None:
    form = MODEL + part("file", b"x" * 4000, "sea.mp3") + part("max_completion_tokens", b"007") + END

    await server.http.post(PATH, content=form, headers=FORM)

    (request,) = server.chat.requests
    assert json.loads(fields_of(request.body))["max_completion_tokens"] == "007"
    assert (request.body_bytes > 4000, request.prompt_bytes) == (True, request.body_bytes // 80)


async def test_the_document_names_the_form(server: Server) -> None:
    document = (await server.http.get("/openapi.json")).json()

    content = document["paths"][PATH]["post"]["requestBody"]["content"]
    assert list(content) == ["multipart/form-data"]
    assert content["multipart/form-data"]["schema"] == {"$ref": "#/components/schemas/TranscriptionBody"}
    assert "TranscriptionBody" in document["components"]["schemas"]


@pytest.mark.parametrize("prompt", [b"of the sea", b"\xff"])
async def test_traces_with_prompts_take_speech(prompt: bytes) -> None:
    kept: list[RequestTrace] = []
    server = Server(traces=RequestTraces(1.0, record_prompts=True, export=kept.append))

    async with server.http as client:
        form = b"".join([MODEL, part("prompt", prompt), SPEECH, END])
        reply = await client.post(PATH, content=form, headers=FORM)

    assert (reply.status_code, reply.json()) == (200, {"from": "chat"})
    (trace,) = kept
    assert trace.attributes[names.INPUT_MESSAGES] == f'"{prompt.decode(errors="replace")}"'
