"""Real answers, whole and streamed, against the types of the clients of OpenAI and Anthropic."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from serve_app.api.engine_client import Operation
from serve_app.engine.engine_call import EngineCall
from serve_app.engine.local_client import LocalEngine
from tests.engine.calls import engine_call
from tests.engine.streams import hear

SEA = [{"role": "user", "content": "Tell me about the sea."}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 9}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"name": "get_weather", "description": "The weather of a place", "parameters": SCHEMA, "strict": True}
CHAT_TOOL = {"type": "function", "function": TOOL}
TYPES: dict[Operation, tuple[Any, Any]] = {
    "chat_completions": (ChatCompletion, ChatCompletionChunk),
    "completions": (Completion, Any),  # the type of an event is that of a whole answer, which has ended
    "responses": (Response, ResponseStreamEvent),
    "messages": (Message, RawMessageStreamEvent),
}
CHAT = {"messages": SEA, "max_tokens": 20}
RESPONSE = {"input": "Tell me about the sea.", "max_output_tokens": 20}


def call(operation: Operation, **body: Any) -> EngineCall:
    return engine_call(operation, json.dumps({"model": "tide", "temperature": 0, **body}).encode(), "r-1")


async def whole(engine: LocalEngine, operation: Operation, **body: Any) -> dict[str, Any]:
    async with engine.call(call(operation, **body)) as reply:
        document: dict[str, Any] = json.loads(reply.body)
        return document


async def streamed(engine: LocalEngine, operation: Operation, **body: Any) -> list[dict[str, Any]]:
    frames = b"".join((await hear(engine, call(operation, stream=True, **body))).chunks)
    return [json.loads(line[6:]) for line in frames.split(b"\n") if line.startswith(b"data: {")]


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("chat_completions", CHAT),
        ("chat_completions", {**CHAT, "logprobs": True, "top_logprobs": 2}),
        ("chat_completions", {**CHAT, "max_tokens": 80, "tools": [CHAT_TOOL], "tool_choice": "required"}),
        ("completions", {"prompt": "The sea", "max_tokens": 20, "logprobs": 2}),
        ("responses", RESPONSE),
        ("responses", {**RESPONSE, "max_output_tokens": 200}),
        ("responses", {**RESPONSE, "include": ["message.output_text.logprobs"], "top_logprobs": 2}),
        ("responses", {"input": "Oslo?", "tools": [{"type": "function", **TOOL}], "tool_choice": "required"}),
        ("messages", CHAT),
        ("messages", {**CHAT, "stop_sequences": ["the"]}),
        (
            "messages",
            {
                **CHAT,
                "max_tokens": 80,
                "tools": [{"name": "get_weather", "input_schema": SCHEMA, "strict": True}],
                "tool_choice": {"type": "any"},
            },
        ),
    ],
)
async def test_answers_have_what_clients_types_require(
    engine: LocalEngine, operation: Operation, body: dict[str, Any]
) -> None:
    of_answer, of_event = (TypeAdapter(kind) for kind in TYPES[operation])

    answer = await whole(engine, operation, **body)
    events = await streamed(engine, operation, **body)

    of_answer.validate_python(answer)
    for event in events:
        of_event.validate_python(event)
    # The types let this field be absent, and OpenAI's published schema does not.
    responses = [event["response"] for event in events if "response" in event]
    assert all(one["error"] is None for one in ([answer, *responses] if operation == "responses" else ()))


@pytest.mark.parametrize(
    ("fields", "ended"),
    [({}, ("max_tokens", None)), ({"stop_sequences": ["x", "the"]}, ("stop_sequence", "the"))],
)
async def test_messages_always_name_their_stop_sequence(
    engine: LocalEngine, fields: dict[str, Any], ended: tuple[str, str | None]
) -> None:
    message = await whole(engine, "messages", **CHAT, **fields)
    start, *_, delta, _ = await streamed(engine, "messages", **CHAT, **fields)

    assert (message["stop_reason"], message["stop_sequence"]) == ended
    assert (delta["delta"]["stop_reason"], delta["delta"]["stop_sequence"]) == ended
    assert (start["message"]["stop_reason"], start["message"]["stop_sequence"]) == (None, None)


async def test_a_count_of_tokens_has_anthropics_shape(engine: LocalEngine) -> None:
    counted = await whole(engine, "count_tokens", messages=SEA)

    assert MessageTokensCount.model_validate(counted).input_tokens > 0
