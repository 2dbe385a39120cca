"""The whole HTTP API over stub engines: statuses, shapes, routing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from httpx import ASGITransport, AsyncClient, Response

from serve_app.api.app import create_app
from serve_app.api.client import EngineReply
from serve_app.api.health import ModelReadiness
from serve_app.api.models import ModelDirectory, ServedModel
from tests.stub_engine import StubEngine, frames

MAX_BODY_BYTES = 4096
DONE = b"data: [DONE]\n\n"


class StubObserver:
    def __init__(self) -> None:
        self.states: dict[str, ModelReadiness] = {}

    async def readiness(self) -> list[ModelReadiness]:
        return [self.states.get(name, ModelReadiness(name, "up")) for name in ("tide", "org/embed")]

    async def metrics(self) -> bytes:
        return b'llm_queue_depth{model="tide"} 3\n'


class Server:
    """The application, its two engines, and a client."""

    def __init__(self, behind_ray: bool = False) -> None:
        self.chat = StubEngine(EngineReply(200, b'{"from":"chat"}'))
        self.embed = StubEngine(EngineReply(200, b'{"from":"embed"}'))
        self.observer = StubObserver()
        directory = ModelDirectory(
            [
                ServedModel("tide", 1_700_000_000, self.chat, 2048),
                ServedModel("org/embed", 1_700_000_001, self.embed),
            ]
        )
        app = create_app(directory, self.observer, MAX_BODY_BYTES, behind_ray=behind_ray)
        self.http = AsyncClient(transport=ASGITransport(app), base_url="http://tide")


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    async with made.http:
        yield made


def error_of(reply: Response) -> dict[str, Any]:
    """The error of a reply, having checked its shape and its id."""
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    (document,) = [reply.json()]
    assert set(document) == {"error"}
    error: dict[str, Any] = document["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("path", "operation"),
    [
        ("/v1/chat/completions", "chat_completions"),
        ("/v1/completions", "completions"),
        ("/v1/embeddings", "embeddings"),
        ("/tokenize", "tokenize"),
        ("/detokenize", "detokenize"),
    ],
)
async def test_each_path_is_its_engine_operation_with_the_body_untouched(
    server: Server, path: str, operation: str
) -> None:
    body = b'{ "model":"tide" ,"unknown":[1, 2.50]}'

    reply = await server.http.post(path, content=body, headers={"X-Request-ID": "r-7"})

    assert (reply.status_code, reply.json()) == (200, {"from": "chat"})
    assert reply.headers["x-request-id"] == "r-7"
    (request,) = server.chat.requests
    assert (request.operation, request.body, request.request_id) == (operation, body, "r-7")
    assert request.waited_s >= 0
    assert server.embed.requests == []


async def test_the_model_chooses_the_engine(server: Server) -> None:
    reply = await server.http.post("/v1/embeddings", json={"model": "org/embed", "input": "sea"})

    assert reply.json() == {"from": "embed"}
    assert server.chat.requests == []


async def test_the_time_spent_before_the_engine_is_handed_on(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks: Iterator[float] = iter([100.0, 100.5])
    monkeypatch.setattr("serve_app.api.request_id.time", Clock(ticks))
    monkeypatch.setattr("serve_app.api.openai.time", Clock(ticks))

    await server.http.post("/v1/completions", json={"model": "tide"})

    assert server.chat.requests[0].waited_s == 0.5


class Clock:
    """A `time` module whose performance counter shows the given readings."""

    def __init__(self, readings: Iterator[float]) -> None:
        self._readings = readings

    def perf_counter(self) -> float:
        return next(self._readings)


async def test_a_stream_is_relayed_as_server_sent_events(server: Server) -> None:
    server.chat.answer = frames(b"data: {}\n\n", DONE)

    reply = await server.http.post("/v1/chat/completions", json={"model": "tide", "stream": True})

    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["x-request-id"]
    assert reply.content == b"data: {}\n\n" + DONE


async def test_an_unknown_path_is_a_404_in_openais_shape(server: Server) -> None:
    reply = await server.http.get("/v1/chat")

    error = error_of(reply)
    assert reply.status_code == 404
    assert (error["type"], error["code"]) == ("invalid_request_error", "not_found")
    assert error["message"] == "GET /v1/chat: Not Found"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("DELETE", "/v1/completions", "POST"),
        ("GET", "/generate", "POST"),
        ("POST", "/v1/models", "GET"),
        ("POST", "/ready", "GET"),
    ],
)
async def test_a_wrong_method_is_a_405_that_says_which_is_right(
    server: Server, method: str, path: str, allowed: str
) -> None:
    reply = await server.http.request(method, path)

    error = error_of(reply)
    assert reply.status_code == 405
    assert error["code"] == "method_not_allowed"
    assert error["message"].startswith(f"{method} {path}: ")
    assert reply.headers["allow"] == allowed


async def test_an_unknown_model_is_a_404_that_names_those_there_are(server: Server) -> None:
    reply = await server.http.post("/v1/chat/completions", json={"model": "nope"})

    error = error_of(reply)
    assert reply.status_code == 404
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert error["message"] == "model = 'nope': does not exist; this server has 'tide', 'org/embed'."


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (b"{}", "model", "missing_field"),
        (b'{"model":null}', "model", "missing_field"),
        (b'{"model":5}', "model", "invalid_value"),
        (b"[]", None, "invalid_value"),
        (b"{nope", None, "invalid_json"),
        (b"", None, "invalid_json"),
    ],
)
async def test_a_body_without_a_usable_model_is_a_400(
    server: Server, body: bytes, param: str | None, code: str
) -> None:
    reply = await server.http.post("/v1/completions", content=body)

    error = error_of(reply)
    assert (reply.status_code, error["param"], error["code"]) == (400, param, code)
    assert server.chat.requests == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/generate"])
async def test_an_oversized_body_is_a_413(server: Server, path: str) -> None:
    reply = await server.http.post(path, json={"model": "tide", "prompt": "x" * MAX_BODY_BYTES})

    assert reply.status_code == 413
    assert error_of(reply)["code"] == "body_too_large"


async def test_an_oversized_body_without_a_length_is_a_413(server: Server) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b" " * 1024

    reply = await server.http.post("/v1/completions", content=chunks())

    assert reply.status_code == 413
    assert error_of(reply)["code"] == "body_too_large"


async def test_the_models_are_listed_in_the_order_of_the_configuration(server: Server) -> None:
    document = (await server.http.get("/v1/models")).json()

    assert document["object"] == "list"
    assert [card["id"] for card in document["data"]] == ["tide", "org/embed"]
    assert document["data"][0] == {
        "id": "tide",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "tideserve",
        "max_model_len": 2048,
    }


async def test_one_model_is_found_even_with_a_slash_in_its_name(server: Server) -> None:
    assert (await server.http.get("/v1/models/tide")).json()["id"] == "tide"
    assert (await server.http.get("/v1/models/org/embed")).json()["id"] == "org/embed"
    assert (await server.http.get("/v1/models/org%2Fembed")).json()["id"] == "org/embed"


async def test_an_unknown_one_model_is_a_404(server: Server) -> None:
    reply = await server.http.get("/v1/models/org/nope")

    assert reply.status_code == 404
    assert error_of(reply)["code"] == "model_not_found"


async def test_generate_runs_on_the_first_model_unless_another_is_named(server: Server) -> None:
    body = b'{"prompt":"sea"}'

    first = await server.http.post("/generate", content=body)
    named = await server.http.post("/generate", json={"prompt": "sea", "model": "org/embed"})

    assert (first.json(), named.json()) == ({"from": "chat"}, {"from": "embed"})
    (request,) = server.chat.requests
    assert (request.operation, request.body) == ("generate", body)


async def test_generate_on_an_unknown_model_is_a_404(server: Server) -> None:
    reply = await server.http.post("/generate", json={"prompt": "sea", "model": "nope"})

    assert reply.status_code == 404
    assert error_of(reply)["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("body", "location", "param"),
    [
        (b'{"prompt":"sea","max_tokens":0}', ["body", "max_tokens"], "max_tokens"),
        (b'{"prompt":"sea","top_k":1}', ["body", "top_k"], "top_k"),
        (b"{}", ["body", "prompt"], "prompt"),
        (b"{nope", ["body"], None),
        (b"\xff", ["body"], None),
        (b"[]", ["body"], None),
    ],
)
async def test_generate_keeps_fastapis_422_beside_the_error_of_every_other_endpoint(
    server: Server, body: bytes, location: list[str], param: str | None
) -> None:
    reply = await server.http.post("/generate", content=body)

    assert reply.status_code == 422
    assert reply.headers["x-request-id"]
    document = reply.json()
    assert set(document) == {"detail", "error"}
    assert document["detail"][0]["loc"] == location
    assert set(document["detail"][0]) == {"type", "loc", "msg"}
    error = document["error"]
    assert (error["param"], error["code"], error["type"]) == (param, "invalid_value", "invalid_request_error")
    assert error["message"] == document["detail"][0]["msg"]
    assert server.chat.requests == []


async def test_generate_tells_every_problem_in_its_detail(server: Server) -> None:
    reply = await server.http.post("/generate", json={"max_tokens": 0, "temperature": 9})

    assert [item["loc"][1] for item in reply.json()["detail"]] == ["prompt", "max_tokens", "temperature"]


async def test_health_and_readiness_are_there(server: Server) -> None:
    assert (await server.http.get("/health")).status_code == 200
    assert (await server.http.get("/ready")).status_code == 200

    server.observer.states["org/embed"] = ModelReadiness("org/embed", "loading", phase="imports")
    reply = await server.http.get("/ready")

    assert reply.status_code == 503
    assert reply.json()["models"]["org/embed"]["phase"] == "imports"


async def test_metrics_are_there(server: Server) -> None:
    reply = await server.http.get("/metrics")

    assert reply.text == 'llm_queue_depth{model="tide"} 3\n'
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")


async def test_behind_ray_the_request_id_is_rays_to_send() -> None:
    server = Server(behind_ray=True)
    async with server.http:
        reply = await server.http.post(
            "/v1/completions", json={"model": "tide"}, headers={"X-Request-ID": "r"}
        )

    assert "x-request-id" not in reply.headers
    assert server.chat.requests[0].request_id == "r"


async def test_the_documentation_is_served(server: Server) -> None:
    reply = await server.http.get("/docs")

    assert reply.status_code == 200
    assert "/openapi.json" in reply.text


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for item in node:
            yield from references(item)


async def test_every_reference_of_the_openapi_document_leads_somewhere(server: Server) -> None:
    document = (await server.http.get("/openapi.json")).json()

    found = set(references(document))
    assert len(found) > 20
    for reference in found:
        target: Any = document
        for key in reference.removeprefix("#/").split("/"):
            assert key in target, reference
            target = target[key]


async def test_every_path_that_takes_a_body_describes_it(server: Server) -> None:
    paths = (await server.http.get("/openapi.json")).json()["paths"]

    described = {
        path: list(operations["post"]["requestBody"]["content"])
        for path, operations in paths.items()
        if "post" in operations
    }
    assert described == {
        path: ["application/json"]
        for path in (
            "/v1/chat/completions",
            "/v1/completions",
            "/v1/embeddings",
            "/tokenize",
            "/detokenize",
            "/generate",
        )
    }


async def test_the_openapi_document_gives_the_bounds_of_generate(server: Server) -> None:
    document = (await server.http.get("/openapi.json")).json()

    schema = document["paths"]["/generate"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    tokens = schema["properties"]["max_tokens"]
    assert (tokens["minimum"], tokens["maximum"], tokens["default"]) == (1, 1_000_000, 128)
    assert schema["required"] == ["prompt"]
    assert "422" in document["paths"]["/generate"]["post"]["responses"]


async def test_the_openapi_document_is_plain_json_and_built_once(server: Server) -> None:
    first = await server.http.get("/openapi.json")
    second = await server.http.get("/openapi.json")

    assert first.content == second.content
    assert json.loads(first.content)["info"]["title"] == "Tideserve"
