"""The OpenAI operations on vLLM's own handlers, of the embedded model, with a stub of the engine core."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from serve_app.api.engine_client import EngineReply, Operation
from serve_app.api.errors import ApiError
from serve_app.api.trace import TraceContext
from serve_app.engine.chat_operations import Serving, chat, complete, detokenize, raw_request, tokenize
from serve_app.engine.engine_call import EngineCall
from serve_app.engine.local_client import LocalEngine
from serve_app.settings.tree import ModelSettings
from tests.engine.calls import changed, engine_call

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SEA = [{"role": "user", "content": "sea"}]


@pytest.fixture
def serving(serving: Serving) -> Serving:
    return replace(serving, max_sequences=4)


def call(**body: Any) -> EngineCall:
    return engine_call("chat_completions", json.dumps(body).encode(), "r-1")


async def document(outcome: Any) -> Any:
    reply = await outcome
    assert isinstance(reply, EngineReply)
    assert reply.status == 200
    return json.loads(reply.body)


async def refusal(outcome: Any) -> tuple[int, str | None, str | None]:
    with pytest.raises(ApiError) as caught:
        await outcome
    return caught.value.status, caught.value.code, caught.value.param


async def test_a_chat_is_completed(serving: Serving) -> None:
    answer = await document(chat(serving, call(messages=SEA, max_tokens=3)))

    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 3


async def test_a_streamed_chat_is_frames_of_server_sent_events(serving: Serving) -> None:
    frames = await chat(serving, call(messages=SEA, max_tokens=2, stream=True))

    assert isinstance(frames, AsyncIterator)
    texts = [frame if isinstance(frame, str) else frame.decode() async for frame in frames]
    assert all(text.startswith("data: ") and text.endswith("\n\n") for text in texts)
    assert texts[-1] == "data: [DONE]\n\n"


async def test_prompts_are_completed_as_text_and_as_tokens(serving: Serving) -> None:
    for prompt, choices in (("sea", 1), (["sea", "tide"], 2), ([1, 2, 3], 1), ([[1], [2]], 2)):
        answer = await document(complete(serving, call(prompt=prompt, max_tokens=1)))

        assert len(answer["choices"]) == choices


async def test_text_goes_to_tokens_and_back(serving: Serving) -> None:
    sea = (await document(tokenize(serving, call(prompt="the sea"))))["tokens"]
    chat = await document(tokenize(serving, call(messages=SEA)))

    assert (await document(detokenize(serving, call(tokens=sea))))["prompt"] == "the sea"
    assert chat["count"] > len(sea)


@pytest.mark.parametrize(
    ("operation", "body", "expected"),
    [
        (chat, {"messages": SEA, "n": 5}, (400, "invalid_value", "n")),
        (chat, {"messages": SEA, "model": "other"}, (404, "model_not_found", "model")),
        (complete, {"prompt": ["a"] * 3, "n": 2}, (400, "invalid_value", "n")),
        (chat, {"messages": SEA, "stop_token_ids": [2048]}, (400, "invalid_value", "stop_token_ids")),
        (complete, {"prompt": [2048]}, (400, "invalid_value", "prompt")),
        (tokenize, {"prompt": "a" * 100_000}, (400, "context_length_exceeded", "prompt")),
        (
            tokenize,
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a" * 100_000}]}]},
            (400, "context_length_exceeded", "messages"),
        ),
        (detokenize, {"tokens": [2048]}, (400, "invalid_value", "tokens")),
        (detokenize, {"tokens": [5] * 257}, (400, "context_length_exceeded", "tokens")),
    ],
)
async def test_what_is_out_of_bounds_is_refused_by_its_field(
    serving: Serving, operation: Any, body: dict[str, Any], expected: tuple[int, str, str]
) -> None:
    assert await refusal(operation(serving, call(**body))) == expected


def test_handlers_read_request_id_and_trace_headers() -> None:
    assert dict(raw_request(call()).headers) == {"x-request-id": "r-1"}

    traced = changed(call(), trace=TraceContext(PARENT, "a=1"))
    assert dict(raw_request(traced).headers) == {
        "x-request-id": "r-1",
        "traceparent": PARENT,
        "tracestate": "a=1",
    }


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("chat_completions", {"messages": SEA}),
        ("completions", {"prompt": ["sea", "moon"]}),
        ("responses", {"input": "sea"}),
        ("messages", {"messages": SEA}),
        ("generate", {"prompt": "sea"}),
    ],
)
async def test_engine_knows_calls_with_the_same_id_apart(
    serving: Serving, operation: Operation, body: dict[str, Any]
) -> None:
    client = LocalEngine(serving, ModelSettings(name="tide"), lambda _: None)
    core: Any = serving.engine.engine_core
    bound = "max_output_tokens" if operation == "responses" else "max_tokens"
    names: list[set[str]] = []
    for _ in range(2):
        before = len(core.requests)
        document = json.dumps({"model": "tide", bound: 1, **body}).encode()
        async with client.call(engine_call(operation, document, "r-1")) as reply:
            assert reply.status == 200
        names.append({request.external_req_id for request in core.requests[before:]})

    assert names[0]
    assert names[0].isdisjoint(names[1])


async def test_answers_have_the_name_that_the_client_asked_for(serving: Serving) -> None:
    client = LocalEngine(serving, ModelSettings(name="tide"), lambda _: None)

    async def models(operation: Operation, alias: str, **body: Any) -> set[str]:
        prompt = {"messages": SEA} if operation == "chat_completions" else {"prompt": "sea"}
        if operation != "generate":
            prompt["model"] = alias
        asked = engine_call(
            operation, json.dumps({**prompt, "max_tokens": 1, **body}).encode(), "r-1", alias=alias
        )
        async with client.call(asked) as reply:
            if reply.stream is None:
                return {json.loads(reply.body)["model"]}
            frames = b"".join([frame async for frame in reply.stream]).split(b"\n\n")
        return {json.loads(frame[6:])["model"] for frame in frames if frame.startswith(b"data: {")}

    assert await models("chat_completions", "gpt-4o") == {"gpt-4o"}
    assert await models("chat_completions", "gpt-4o", stream=True) == {"gpt-4o"}
    assert await models("chat_completions", "gpt-4o", stream=True, logprobs=True) == {"gpt-4o"}
    assert await models("completions", "claude-3", stream=True) == {"claude-3"}
    assert await models("generate", "claude-3") == {"claude-3"}
    assert await models("generate", "") == {"tide"}


async def test_only_the_alias_of_the_call_is_accepted(serving: Serving) -> None:
    client = LocalEngine(serving, ModelSettings(name="tide"), lambda _: None)
    body = json.dumps({"messages": SEA, "model": "gpt-4o"}).encode()
    for alias in ("", "gpt-4"):
        with pytest.raises(ApiError) as caught:
            async with client.call(engine_call("chat_completions", body, "r-1", alias=alias)):
                pass
        assert (caught.value.status, caught.value.code) == (404, "model_not_found")


async def core_request(serving: Serving, operation: Operation, key: str = "", **body: Any) -> Any:
    """The request that the engine core gets for a client whose key has this salt."""
    client = LocalEngine(serving, ModelSettings(name="tide"), lambda _: None)
    prompt = {"messages": SEA} if operation == "chat_completions" else {"prompt": "sea"}
    document = json.dumps({**prompt, "max_tokens": 1, **body}).encode()
    trace = TraceContext(PARENT, "a=1")
    asked = engine_call(operation, document, "r-1", cache_salt=key, trace=trace)
    async with client.call(asked) as reply:
        assert reply.status == 200
    return serving.engine.engine_core.requests[-1]


@pytest.mark.parametrize("operation", ["chat_completions", "completions", "generate"])
async def test_the_engine_core_gets_the_salt_and_the_trace(
    serving: Serving, operation: Operation, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if an engine had been started with it. Without it, vLLM passes no trace on.
    monkeypatch.setattr(serving.engine.observability_config, "otlp_traces_endpoint", "http://127.0.0.1:9")

    async def salt(key: str, **body: Any) -> Any:
        return (await core_request(serving, operation, key, **body)).cache_salt

    assert [await salt(key) for key in ("", "key-a", "key-b")] == [None, "key-a", "key-b"]
    assert dict((await core_request(serving, operation)).trace_headers) == {
        "traceparent": PARENT,
        "tracestate": "a=1",
    }
    if operation != "generate":  # a client's own salt counts within that of its key
        own, one, other, again = [
            await salt(key, cache_salt="own") for key in ("", "key-a", "key-b", "key-a")
        ]
        assert (own, one) == ("own", again)
        assert len({own, one, other, "key-a", "key-b"}) == 5
        assert len(one) == 64
