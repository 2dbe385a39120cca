"""The OpenAI operations on vLLM's own handlers, of the embedded model, with a stub of the engine core."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.datastructures import State
from starlette.responses import JSONResponse

from serve_app.api.engine_client import EngineReply, EngineRequest, Operation
from serve_app.api.errors import ApiError
from serve_app.api.trace_context import TraceContext
from serve_app.engine.local_client import LocalEngine
from serve_app.engine.operations import Operations, Serving, raw_request
from serve_app.settings import ModelSettings

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SEA = [{"role": "user", "content": "sea"}]


@pytest.fixture
def operations(serving: Serving) -> Operations:
    return Operations(serving, max_sequences=4)


def call(**body: Any) -> EngineRequest:
    return EngineRequest("chat_completions", json.dumps(body).encode(), "r-1")


async def document(outcome: Any) -> Any:
    reply = await outcome
    assert isinstance(reply, EngineReply)
    assert reply.status == 200
    return json.loads(reply.body)


async def refusal(outcome: Any) -> tuple[int, str | None, str | None]:
    with pytest.raises(ApiError) as caught:
        await outcome
    return caught.value.status, caught.value.code, caught.value.param


async def test_a_chat_is_completed(operations: Operations) -> None:
    told = await document(operations.chat(call(messages=SEA, max_tokens=3)))

    assert told["object"] == "chat.completion"
    assert told["choices"][0]["finish_reason"] == "length"
    assert told["usage"]["completion_tokens"] == 3


async def test_a_streamed_chat_is_frames_of_server_sent_events(operations: Operations) -> None:
    frames = await operations.chat(call(messages=SEA, max_tokens=2, stream=True))

    assert isinstance(frames, AsyncIterator)
    texts = [frame if isinstance(frame, str) else frame.decode() async for frame in frames]
    assert all(text.startswith("data: ") and text.endswith("\n\n") for text in texts)
    assert texts[-1] == "data: [DONE]\n\n"


async def test_prompts_are_completed_as_text_and_as_tokens(operations: Operations) -> None:
    for prompt, choices in (("sea", 1), (["sea", "tide"], 2), ([1, 2, 3], 1), ([[1], [2]], 2)):
        told = await document(operations.text(call(prompt=prompt, max_tokens=1)))

        assert len(told["choices"]) == choices


async def test_text_goes_to_tokens_and_back(operations: Operations) -> None:
    sea = (await document(operations.tokenize(call(prompt="the sea"))))["tokens"]
    chat = await document(operations.tokenize(call(messages=SEA)))

    assert (await document(operations.detokenize(call(tokens=sea))))["prompt"] == "the sea"
    assert chat["count"] > len(sea)


@pytest.mark.parametrize(
    ("name", "body", "expected"),
    [
        ("chat", {"messages": SEA, "n": 5}, (400, "invalid_value", "n")),
        ("chat", {"messages": SEA, "model": "other"}, (404, "model_not_found", "model")),
        ("text", {"prompt": ["a"] * 3, "n": 2}, (400, "invalid_value", "n")),
        ("text", {"prompt": [2048]}, (400, "invalid_value", "prompt")),
        ("tokenize", {"prompt": "a" * 100_000}, (400, "context_length_exceeded", "prompt")),
        (
            "tokenize",
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a" * 100_000}]}]},
            (400, "context_length_exceeded", "messages"),
        ),
        ("detokenize", {"tokens": [2048]}, (400, "invalid_value", "tokens")),
        ("detokenize", {"tokens": [5] * 257}, (400, "context_length_exceeded", "tokens")),
        ("embeddings", {"input": "sea"}, (400, "unsupported_feature", "model")),
    ],
)
async def test_what_is_out_of_bounds_is_refused_by_its_field(
    operations: Operations,
    name: str,
    body: dict[str, Any],
    expected: tuple[int, str, str],
) -> None:
    operation = getattr(operations, name)
    assert await refusal(operation(call(**body))) == expected


async def test_a_field_of_the_wrong_type_is_named(operations: Operations) -> None:
    assert await refusal(operations.chat(call(messages="sea"))) == (400, "invalid_value", "messages")


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (JSONResponse({"data": []}), {"data": []}),
        (JSONResponse({"error": {"message": "no", "param": "input"}}, 422), (422, None, "input")),
    ],
)
async def test_an_embedding_handlers_finished_response_is_the_reply_or_the_refusal(
    serving: Serving, answer: JSONResponse, expected: Any
) -> None:
    async def stub_handler(request: Any, raw: Any) -> JSONResponse:
        return answer

    operations = Operations(Serving(serving.engine, State({"serving_embedding": stub_handler})), 1)
    outcome = operations.embeddings(call(input="sea"))

    assert await (document(outcome) if answer.status_code == 200 else refusal(outcome)) == expected


async def test_too_many_texts_are_refused_before_they_are_looked_at(serving: Serving) -> None:
    operations = Operations(Serving(serving.engine, State({"serving_embedding": object()})), 1)

    assert await refusal(operations.embeddings(call(input=["a"] * 2049))) == (400, "invalid_value", "input")


def test_every_handler_that_operations_ask_for_is_mounted_under_its_name(serving: Serving) -> None:
    """vLLM renames them now and then."""
    assert hasattr(serving.state.openai_serving_chat, "create_chat_completion")
    assert hasattr(serving.state.openai_serving_completion, "create_completion")
    assert hasattr(serving.state.serving_tokenization, "create_tokenize")
    assert hasattr(serving.state.serving_tokenization, "create_detokenize")


async def test_what_the_model_cannot_do_is_the_clients_error(serving: Serving) -> None:
    with pytest.raises(ApiError) as caught:
        await Operations(serving, 1).embeddings(call(input="sea"))

    assert (caught.value.status, caught.value.code) == (400, "unsupported_feature")
    assert caught.value.message == "This model does not support embeddings."


def test_handlers_read_the_requests_id_and_its_trace_from_its_headers() -> None:
    asked = call()
    assert dict(raw_request(asked).headers) == {"x-request-id": "r-1"}

    asked.trace = TraceContext(PARENT, "a=1")
    assert dict(raw_request(asked).headers) == {
        "x-request-id": "r-1",
        "traceparent": PARENT,
        "tracestate": "a=1",
    }


async def salts(serving: Serving, operation: Operation, *keys: str, **body: Any) -> list[str | None]:
    """The salts that the engine core is told, for clients whose keys have these."""
    client = LocalEngine(serving, ModelSettings(name="tide"), lambda _: None)
    prompt = {"messages": SEA} if operation == "chat_completions" else {"prompt": "sea"}
    told = []
    for key in keys:
        asked = EngineRequest(operation, json.dumps({**prompt, "max_tokens": 1, **body}).encode(), "r-1")
        asked.cache_salt = key
        async with client.call(asked) as reply:
            assert reply.status == 200
        told.append(serving.engine.engine_core.requests[-1].cache_salt)
    return told


@pytest.mark.parametrize("operation", ["chat_completions", "completions", "generate"])
async def test_the_engine_core_is_told_the_salt_of_the_key(serving: Serving, operation: Operation) -> None:
    assert await salts(serving, operation, "", "key-a", "key-b") == [None, "key-a", "key-b"]


async def test_embeddings_have_the_salt_of_the_key(serving: Serving) -> None:
    told: list[str | None] = []

    async def stub_handler(request: Any, raw: Any) -> JSONResponse:
        told.append(request.cache_salt)
        return JSONResponse({})

    operations = Operations(Serving(serving.engine, State({"serving_embedding": stub_handler})), 1)
    for body in ({"input": "sea"}, {"messages": SEA}):
        asked = call(**body)
        asked.cache_salt = "key-a"
        await operations.embeddings(asked)

    assert told == ["key-a", "key-a"]


@pytest.mark.parametrize("operation", ["chat_completions", "completions"])
async def test_a_clients_own_salt_counts_within_that_of_its_key(
    serving: Serving, operation: Operation
) -> None:
    own, one, other, again = await salts(serving, operation, "", "key-a", "key-b", "key-a", cache_salt="own")

    assert own == "own"
    assert one == again
    assert len({own, one, other, "key-a", "key-b"}) == 5
    assert one is not None
    assert len(one) == 64


@pytest.mark.parametrize("operation", ["chat_completions", "completions", "generate"])
async def test_the_engine_core_is_told_of_the_trace_where_traces_are_exported(
    serving: Serving, operation: Operation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`otlp_traces_endpoint` is set as if an engine had been started with it; without, vLLM tells nothing."""
    monkeypatch.setattr(serving.engine.observability_config, "otlp_traces_endpoint", "http://127.0.0.1:9")
    client = LocalEngine(serving, ModelSettings(name="tide"), lambda _: None)
    body = {"messages": SEA} if operation == "chat_completions" else {"prompt": "sea"}
    asked = EngineRequest(operation, json.dumps({**body, "max_tokens": 1}).encode(), "r-1")
    asked.trace = TraceContext(PARENT, "a=1")

    async with client.call(asked) as reply:
        assert reply.status == 200

    told = serving.engine.engine_core.requests[-1].trace_headers
    assert dict(told) == {"traceparent": PARENT, "tracestate": "a=1"}
