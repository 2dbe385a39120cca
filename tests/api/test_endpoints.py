"""The endpoints over stub engines: the requests that reach an engine, and those that are refused before."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from serve_app.api.endpoints import ApiModel, Endpoints
from serve_app.api.engine_client import EngineReply, TraceContext
from serve_app.api.errors import ApiError
from serve_app.settings.tree import HttpSettings
from tests.api.server import MAX_BODY_BYTES, Server, error_of
from tests.stub_engine import LIMIT_S, StubEngine

DONE = b"data: [DONE]\n\n"


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


class Clock:
    """A `time` module whose performance counter shows the given readings."""

    def __init__(self, readings: Iterator[float]) -> None:
        self._readings = readings

    def perf_counter(self) -> float:
        return next(self._readings)


async def test_the_time_spent_before_the_engine_is_handed_on(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve_app.api.middleware.time", Clock(iter([100.0])))

    await server.http.post("/v1/completions", json={"model": "tide"})

    assert server.chat.requests[0].arrived == 100.0


@pytest.mark.parametrize("path", ["/v1/completions", "/generate"])
async def test_the_trace_of_a_request_is_handed_on(server: Server, path: str) -> None:
    body = {"model": "tide", "prompt": "sea"}
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    await server.http.post(path, json=body, headers={"Traceparent": parent, "Tracestate": "a=1"})
    await server.http.post(path, json=body, headers={"Traceparent": "00-" + parent, "Tracestate": "a=1"})
    await server.http.post(path, json=body)

    traces = [request.trace for request in server.chat.requests]
    assert traces == [TraceContext(parent, "a=1"), None, None]


@pytest.mark.parametrize(
    ("stream", "wants_stream"),
    [
        (b',"stream":true', True),
        (b',"stream":false', False),
        (b',"stream":null', False),
        (b"", False),
        # What these mean, if anything, is for the engine to say; nobody is sent comments on a guess.
        (b',"stream":1', False),
        (b',"stream":"true"', False),
        (b',"stream":{"a":[1]}', False),
    ],
)
async def test_stream_field_of_the_body_is_read(server: Server, stream: bytes, wants_stream: bool) -> None:
    for path in ("/v1/chat/completions", "/v1/embeddings"):
        await server.http.post(path, content=b'{"model":"tide"' + stream + b"}")

    assert [request.wants_stream for request in server.chat.requests] == [wants_stream, False]


async def test_unknown_model_is_a_404_that_names_the_models(server: Server) -> None:
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


async def test_model_with_a_slash_in_its_name_is_found(server: Server) -> None:
    assert (await server.http.get("/v1/models/tide")).json()["id"] == "tide"
    assert (await server.http.get("/v1/models/org/embed")).json()["id"] == "org/embed"
    assert (await server.http.get("/v1/models/org%2Fembed")).json()["id"] == "org/embed"


async def test_generate_runs_on_the_first_model_unless_another_is_named(server: Server) -> None:
    body = b'{"prompt":"sea"}'

    first = await server.http.post("/generate", content=body)
    named = await server.http.post("/generate", json={"prompt": "sea", "model": "org/embed"})

    assert (first.json(), named.json()) == ({"from": "chat"}, {"from": "embed"})
    (request,) = server.chat.requests
    assert (request.operation, request.body) == ("generate", body)


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
async def test_generate_has_fastapis_422_beside_the_common_error(
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


async def test_a_deadline_bounds_the_body_too(server: Server) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield b'{"model":'
        await asyncio.Event().wait()

    async with asyncio.timeout(LIMIT_S):
        reply = await server.http.post(
            "/v1/completions", content=endless(), headers={"X-Request-Timeout-Seconds": "0.05"}
        )

    assert (reply.status_code, error_of(reply)["code"]) == (408, "deadline_exceeded")
    assert (reply.headers["connection"], reply.headers["x-should-retry"]) == ("close", "false")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/generate", "/tokenize"])
async def test_wrong_deadline_is_a_400_before_the_body(server: Server, path: str) -> None:
    reply = await server.http.post(path, content=b"nonsense", headers={"X-Request-Timeout-Seconds": "-1"})

    error = error_of(reply)
    assert (reply.status_code, error["param"]) == (400, "X-Request-Timeout-Seconds")
    assert error["message"].startswith(
        "X-Request-Timeout-Seconds = '-1': must be a number of seconds above 0"
    )


ENGINE = StubEngine(EngineReply(200))


def models(*names: str) -> Endpoints:
    return Endpoints([ApiModel(name, 1_700_000_000, ENGINE) for name in names], HttpSettings())


def test_one_of_several_models_must_be_named() -> None:
    with pytest.raises(ApiError) as caught:
        models("b", "a").find(None)

    error = caught.value
    assert (error.status, error.param, error.code) == (400, "model", "missing_field")
    assert error.message == "model: required; this server has 'b', 'a'."


def test_a_name_without_end_is_not_repeated_whole() -> None:
    with pytest.raises(ApiError) as caught:
        models("a").find("x" * 100_000)

    assert len(caught.value.message) < 300


def test_a_card_is_openais_with_the_context_length() -> None:
    assert ApiModel("a", 1_700_000_000, ENGINE, 2048).card() == {
        "id": "a",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "tideserve",
        "max_model_len": 2048,
    }
