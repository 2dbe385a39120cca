"""The endpoints over stub engines: the requests that reach an engine, and those that are refused before."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from serve_app.api.body import MAX_VALUES
from serve_app.api.endpoints import ApiModel, Endpoints
from serve_app.api.engine_client import EngineReply
from serve_app.api.request_head import RequestTraces
from serve_app.api.trace import TraceContext
from serve_app.settings.tree import HttpSettings
from tests.api.server import MAX_BODY_BYTES, Server, error_of
from tests.api.traffic_log import TrafficLog
from tests.refusal import refusal
from tests.stub_engine import LIMIT_S, StubEngine

DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("path", "operation"),
    [
        ("/v1/chat/completions", "chat_completions"),
        ("/v1/completions", "completions"),
        ("/v1/embeddings", "embeddings"),
        ("/v1/messages", "messages"),
        ("/v1/messages/count_tokens", "count_tokens"),
        ("/v1/score", "score"),
        ("/score", "score"),
        ("/v1/rerank", "rerank"),
        ("/v2/rerank", "rerank"),
        ("/rerank", "rerank"),
        ("/classify", "classify"),
        ("/pooling", "pooling"),
        ("/tokenize", "tokenize"),
        ("/detokenize", "detokenize"),
    ],
)
async def test_each_path_is_its_engine_operation_with_the_body_untouched(
    server: Server, path: str, operation: str
) -> None:
    body, began = b'{ "model":"tide" ,"unknown":[1, 2.50]}', time.perf_counter()

    reply = await server.http.post(path, content=body, headers={"X-Request-ID": "r-7"})

    assert (reply.status_code, reply.json()) == (200, {"from": "chat"})
    assert reply.headers["x-request-id"] == "r-7"
    (request,) = server.chat.requests
    assert (request.operation, request.body, request.request_id) == (operation, body, "r-7")
    assert began <= request.arrived <= time.perf_counter()
    assert server.embed.requests == []


@pytest.mark.parametrize(("path", "expected"), [("/v1/rerank", 10), ("/v1/score", 10), ("/classify", 0)])
async def test_a_query_with_three_documents_is_read_twice_again(
    server: Server, path: str, expected: int
) -> None:
    await server.http.post(path, json={"model": "tide", "query": "sea", "documents": ["a", "b", "c"]})

    assert [request.repeated_bytes for request in server.chat.requests] == [expected]


async def test_the_model_chooses_the_engine(server: Server) -> None:
    reply = await server.http.post("/v1/embeddings", json={"model": "org/embed", "input": "sea"})

    assert reply.json() == {"from": "embed"}
    assert server.chat.requests == []


@pytest.mark.parametrize("path", ["/v1/completions", "/generate"])
async def test_the_trace_of_a_request_is_handed_on(server: Server, path: str) -> None:
    body = {"model": "tide", "prompt": "sea"}
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    await server.http.post(path, json=body, headers={"Traceparent": parent, "Tracestate": "a=1"})
    await server.http.post(path, json=body, headers={"Traceparent": "00-" + parent, "Tracestate": "a=1"})
    await server.http.post(path, json=body)

    traces = [request.context for request in server.chat.requests]
    assert traces == [TraceContext(parent, "a=1"), None, None]


@pytest.mark.parametrize(
    ("path", "body", "wants_stream"),
    [
        ("/v1/chat/completions", {"stream": True}, True),
        ("/v1/completions", {"stream": True}, True),
        ("/generate", {"prompt": "sea", "stream": True}, True),
        ("/v1/completions", {}, False),
        ("/v1/completions", {"stream": False}, False),
        ("/v1/completions", {"stream": None}, False),
        ("/generate", {"prompt": "sea"}, False),
        # vLLM's models take these as true or false.
        ("/v1/completions", {"stream": 1}, True),
        ("/v1/chat/completions", {"stream": "true"}, True),
        ("/v1/responses", {"stream": "yes"}, True),
        ("/v1/messages", {"stream": 1.0}, True),
        ("/generate", {"prompt": "sea", "stream": "on"}, True),
        ("/v1/completions", {"stream": "no"}, False),
        # The engine refuses these. Nobody is sent comments on a guess.
        ("/v1/completions", {"stream": 2}, False),
        ("/v1/completions", {"stream": {"a": [1]}}, False),
        # There is no stream to ask for.
        ("/v1/embeddings", {"stream": True}, False),
        ("/tokenize", {"stream": True}, False),
    ],
)
async def test_stream_is_wanted_if_asked_for_and_possible(
    server: Server, path: str, body: dict[str, object], wants_stream: bool
) -> None:
    await server.http.post(path, json={"model": "tide", **body})

    (request,) = server.chat.requests
    assert (request.wants_stream, request.kept is not None) == (wants_stream, wants_stream)


async def test_unknown_model_is_a_404_and_no_traffic() -> None:
    traffic = TrafficLog()
    server = Server(traffic={"tide": traffic})
    reply = await server.http.post("/v1/chat/completions", json={"model": "nope"})

    error = error_of(reply)
    assert reply.status_code == 404
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert error["message"] == "model = 'nope': does not exist; this server has 'tide', 'org/embed'."
    assert traffic.names == []


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (b"{}", "model", "missing_field"),
        (b'{"model":null}', "model", "missing_field"),
        (b'{"model":5}', "model", "invalid_value"),
        (b"", None, "invalid_json"),
    ],
)
async def test_a_body_without_a_usable_model_is_a_400(
    server: Server, body: bytes, param: str | None, code: str
) -> None:
    reply = await server.http.post("/v1/completions", content=body)

    error = error_of(reply)
    assert (reply.status_code, error["param"], error["code"]) == (400, param, code)
    if code == "missing_field":
        assert error["message"] == "model: required; this server has 'tide', 'org/embed'."
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


async def test_an_alias_is_a_name_of_its_model() -> None:
    server = Server(aliases={"org/embed": ["text-embedding-3", "claude-*"]})
    for name in ("text-embedding-3", "claude-opus-4", "org/embed"):
        reply = await server.http.post("/v1/chat/completions", json={"model": name, "messages": []})
        assert reply.json() == {"from": "embed"}
    assert (await server.http.post("/generate", json={"model": "claude-2", "prompt": "a"})).is_success

    aliases = [request.alias for request in server.embed.requests]
    assert aliases == ["text-embedding-3", "claude-opus-4", "", "claude-2"]
    assert server.chat.requests == []


async def test_aliases_may_change_at_any_time(server: Server) -> None:
    async def status() -> int:
        return (await server.http.post("/v1/completions", json={"model": "gpt-4o"})).status_code

    before = await status()
    server.aliases["tide"] = ["gpt-*"]
    during = await status()
    server.aliases.clear()

    assert (before, during, await status()) == (404, 200, 404)


async def test_aliases_without_wildcards_are_listed() -> None:
    server = Server(aliases={"tide": ["gpt-4o", "claude-*"], "org/embed": ["ada"]})

    listed = (await server.http.get("/v1/models")).json()["data"]
    named = (await server.http.get("/v1/models/claude-opus-4")).json()

    assert [(card["id"], card.get("root")) for card in listed] == [
        ("tide", None),
        ("gpt-4o", "tide"),
        ("org/embed", None),
        ("ada", "org/embed"),
    ]
    assert (named["id"], named["root"], named["max_model_len"]) == ("claude-opus-4", "tide", 2048)
    assert (await server.http.get("/v1/models/claude")).status_code == 404


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


def test_a_name_without_end_is_not_repeated_whole() -> None:
    error = refusal(models("a").find, "x" * 100_000)

    assert len(error.message) < 300


NOT_JSON = [
    b'{"a\xff":null,"model":"tide"}',
    b'{"\\ud800":null,"model":"tide"}',
    b'{"messages":[{"role":"user","content":"\xff"}],"query":["\xff"],"documents":["\xff"],"model":"tide"}',
    b'{"prompt":"\xff","temperature":"\xff","model":"tide"}',
    b'{"prompt":[[1,"\xff' + b"1," * MAX_VALUES + b'1"]],"model":"tide"}',
    b'{"model":"\xff"}',
    b"\xff",
]


@pytest.mark.parametrize("body", NOT_JSON, ids=lambda body: str(body)[:30])
async def test_bytes_that_are_no_json_are_no_fault_of_the_server(body: bytes) -> None:
    traces = RequestTraces(1.0, record_prompts=True)
    server = Server(max_body_bytes=1 << 20, max_body_memory_bytes=4 << 20, traces=traces)
    paths = [route.path for route in server.app.routes if "POST" in (getattr(route, "methods", None) or ())]
    async with server.http as client:
        for path in paths:
            if "audio" not in path:
                reply = await client.post(path, content=body, headers={"X-Tideserve-Trace": "1"})
                assert reply.status_code in (200, 400, 422), (path, reply.text)
