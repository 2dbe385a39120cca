"""The official client, unmodified, against the real engine through the real proxy."""

import asyncio
import json
import re

import httpx
import openai
import pydantic
import pytest

from tests.integration.conftest import ALIAS, CHAT, EMBED, NARROW, SPEECH

SEA = [{"role": "user", "content": "Tell me about the sea."}]
WEATHER = [{"role": "user", "content": "What is the weather in Paris?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


def text_of(stream) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def test_streaming_and_not_streaming_say_the_same(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=CHAT, messages=SEA, max_tokens=50, temperature=0)
    stream = client.chat.completions.create(
        model=CHAT, messages=SEA, max_tokens=50, temperature=0, stream=True
    )
    text = whole.choices[0].message.content
    assert text_of(stream) == text
    assert len(re.findall(r"[A-Za-z]{2,}", text)) > 5
    assert whole.model == CHAT


def test_usage_comes_last_with_latency_as_an_extension(client: openai.OpenAI) -> None:
    *_, last = client.chat.completions.create(
        model=CHAT, messages=SEA, max_tokens=16, stream=True, stream_options={"include_usage": True}
    )
    assert last.choices == []
    latency = last.latency
    assert latency["tokens_generated"] == last.usage.completion_tokens
    assert 0 < latency["ttft_ms"] <= latency["total_time_ms"]
    assert latency["tokens_per_second"] > 0
    assert latency["inter_token_ms"] >= 0


def test_a_prompt_that_comes_again_is_told_to_be_cached(client: openai.OpenAI) -> None:
    """A block of the CPU's prefix cache has 128 tokens."""
    prompt = [1000 + number % 700 for number in range(400)]
    told = []
    for _ in range(2):
        *_, last = client.completions.create(
            model=CHAT, prompt=prompt, max_tokens=2, stream=True, stream_options={"include_usage": True}
        )
        told.append(last.latency["cached_tokens"])
    assert told[0] == 0
    assert 128 <= told[1] < 400


def test_a_required_tool_is_called_with_its_schema(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model=CHAT, messages=WEATHER, tools=[TOOL], tool_choice="required", temperature=0, max_tokens=80
    )
    call = reply.choices[0].message.tool_calls[0].function
    assert call.name == "get_weather"
    assert isinstance(json.loads(call.arguments)["city"], str)


def test_the_models_are_listed_and_found(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [CHAT, ALIAS, NARROW, EMBED, SPEECH]
    assert client.models.retrieve(EMBED).id == EMBED


@pytest.mark.parametrize("name", [ALIAS, "claude-opus-4"])
def test_an_alias_is_the_name_of_the_answer(client: openai.OpenAI, name: str) -> None:
    whole = client.chat.completions.create(model=name, messages=SEA, max_tokens=3)
    stream = client.completions.create(model=name, prompt="The tide", max_tokens=3, stream=True)

    assert {whole.model, *(chunk.model for chunk in stream)} == {name}
    assert client.models.retrieve(name).root == CHAT


def test_documents_are_ranked_by_the_model_that_embeds(http: httpx.Client) -> None:
    body = {"model": EMBED, "query": "the sea", "documents": ["a fox", "the sea"], "top_n": 1}

    reply = http.post("/v2/rerank", json=body).json()

    assert [(result["index"], result["document"]["text"]) for result in reply["results"]] == [(1, "the sea")]
    assert reply["model"] == EMBED


def test_embeddings_come_from_the_model_that_can(client: openai.OpenAI) -> None:
    reply = client.embeddings.create(model=EMBED, input=["the sea", "a lighthouse"])
    assert [len(item.embedding) for item in reply.data] == [256, 256]
    assert reply.data[0].embedding != reply.data[1].embedding
    with pytest.raises(openai.BadRequestError, match="does not support embeddings"):
        client.embeddings.create(model=CHAT, input="x")
    with pytest.raises(openai.BadRequestError, match="does not support chat completions"):
        client.chat.completions.create(model=EMBED, messages=SEA)


async def test_the_async_client_streams_many_at_once(async_client: openai.AsyncOpenAI) -> None:
    async def one(index: int) -> int:
        stream = await async_client.chat.completions.create(
            model=CHAT,
            messages=[{"role": "user", "content": f"Story number {index}"}],
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        tokens = 0
        async for chunk in stream:
            tokens = chunk.usage.completion_tokens if chunk.usage else tokens
        return tokens

    assert await asyncio.gather(*(one(index) for index in range(16))) == [20] * 16


# Responses.

RESPONSE_TOOL = {"type": "function", **TOOL["function"]}


class Place(pydantic.BaseModel):
    city: str = pydantic.Field(max_length=20)


def test_a_response_says_the_same_whole_and_streamed(client: openai.OpenAI) -> None:
    asked = {"model": CHAT, "input": "Tell me about the sea.", "max_output_tokens": 50, "temperature": 0}
    whole = client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        events = list(stream)
    types, final = [event.type for event in events], events[-1].response

    assert whole.output_text == final.output_text
    assert len(re.findall(r"[A-Za-z]{2,}", whole.output_text)) > 5
    assert whole.usage.output_tokens == final.usage.output_tokens <= 50
    assert types[:2] == ["response.created", "response.in_progress"]
    assert types[-1] == f"response.{whole.status}"
    assert types.count("response.output_text.delta") > 10


def test_a_response_is_parsed(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(model=CHAT, input="Name a city.", text_format=Place, max_output_tokens=80)
    assert isinstance(parsed.output_parsed, Place)


def test_a_response_calls_a_tool_and_goes_on(client: openai.OpenAI) -> None:
    question = {"role": "user", "content": "What is the weather in Paris?"}
    first = client.responses.create(
        model=CHAT,
        input=[question],
        tools=[RESPONSE_TOOL, {"type": "web_search"}],
        tool_choice={"type": "function", "name": "get_weather"},
        max_output_tokens=80,
        temperature=0,
    )
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert list(json.loads(call.arguments)) == ["city"]

    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    second = client.responses.create(
        model=CHAT, input=[question, call.model_dump(exclude_none=True), result], max_output_tokens=20
    )
    assert second.output_text
