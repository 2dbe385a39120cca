"""Responses on vLLM's own handler of the embedded model: whole, streamed, refused, and continued."""

import json
import time
from typing import Any

import pytest
from starlette.requests import Request
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

from serve_app.api.errors import ApiError
from serve_app.engine.chat_operations import Serving
from serve_app.engine.engine_call import EngineCall
from serve_app.engine.local_client import LocalEngine
from serve_app.engine.responses_operation import create_response
from serve_app.settings.tree import ModelSettings
from serve_app.wire.data_plane import Continuation
from tests.engine.calls import engine_call
from tests.engine.local import FakeLog
from tests.engine.responses_streams import events_of, text_of, types_of, without_varying
from tests.engine.streams import at_each, hear
from tests.engine.stub_engine_core import StubEngineCore, front_end

CREATED = 1_700_000_000
GREEDY = {"temperature": 0, "max_output_tokens": 24}
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a place",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
SEARCH = {"type": "web_search"}
ALLOWED = {"type": "allowed_tools", "mode": "required"}
TEXT_EVENTS = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.incomplete",
]


def asked(continuation: Continuation | None = None, **body: Any) -> EngineCall:
    body = {"input": "Write a story about the sea.", **GREEDY, **body}
    return engine_call(
        "responses",
        json.dumps(body).encode(),
        "r-1",
        time.perf_counter(),
        continuation=continuation,
    )


async def whole(client: LocalEngine, **body: Any) -> dict[str, Any]:
    async with client.call(asked(**body)) as reply:
        assert reply.status == 200
        document: dict[str, Any] = json.loads(reply.body)
        return document


async def frames_of(client: LocalEngine, **body: Any) -> bytes:
    return b"".join((await hear(client, asked(stream=True, **body))).chunks)


@pytest.fixture
def stub(serving: Serving) -> LocalEngine:
    return LocalEngine(serving, ModelSettings(name="tide"), lambda _: None)


async def vllm_events(serving: Serving, **body: Any) -> list[Any]:
    """Return the events of vLLM's handler itself, with the end of a cut answer and the fields of OpenAI."""
    request = ResponsesRequest.model_validate({"input": "Write a story about the sea.", **GREEDY, **body})
    raw = Request({"type": "http", "method": "POST", "headers": []})
    events = await serving.state.openai_serving_responses.create_responses(request, raw)
    found = [json.loads(event.model_dump_json(by_alias=True)) async for event in events]
    assert found[-1]["type"] == "response.completed"
    found[-1]["type"] = "response.incomplete"
    for event in found:
        if "response" in event:
            event["response"]["error"] = None
    return found


async def test_events_are_those_of_vllms_server(stub: LocalEngine, serving: Serving) -> None:
    ours = events_of(await frames_of(stub))
    theirs = await vllm_events(serving, stream=True)

    assert without_varying(joined(ours)) == without_varying(joined(theirs))
    assert [event["sequence_number"] for event in ours] == list(range(len(ours)))


async def test_whole_and_streamed_responses_say_the_same(engine: LocalEngine) -> None:
    streamed = await frames_of(engine)
    response = await whole(engine)

    assert types_of(streamed) == TEXT_EVENTS
    assert response["output"][0]["content"][0]["text"] == text_of(streamed)
    assert response["usage"]["output_tokens"] == 24
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert without_varying(response) == without_varying(events_of(streamed)[-1]["response"])


async def test_a_response_that_ends_by_itself_is_completed(engine: LocalEngine) -> None:
    asked_for = {"input": "What is the weather in Oslo?", "tools": [WEATHER], "max_output_tokens": 200}
    *_, last = events_of(await frames_of(engine, **asked_for))
    response = await whole(engine, **asked_for)

    assert (last["type"], last["response"]["status"]) == ("response.completed", "completed")
    assert (response["status"], response["incomplete_details"]) == ("completed", None)


async def test_first_chunk_waits_for_the_first_output() -> None:
    core = StubEngineCore()
    async with front_end(core) as (_, client):
        async with client.call(asked(stream=True)) as reply:
            assert core.requests, "the reply came before the engine had the request"
            assert reply.stream is not None
            first = await anext(aiter(reply.stream))
    assert [event["type"] for event in events_of(first)] == TEXT_EVENTS[:3]


async def test_failed_generation_before_any_output_has_a_status(stub: LocalEngine, serving: Serving) -> None:
    handler = serving.state.openai_serving_responses
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(handler, "_raise_if_error", _fail)
        with pytest.raises(ApiError) as caught:
            async with stub.call(asked(stream=True)):
                pass
    assert (caught.value.status, caught.value.code) == (500, "engine_error")


def _fail(*_: Any) -> None:
    from vllm.exceptions import GenerationError

    raise GenerationError("Internal server error")


async def test_request_log_has_the_operation_and_its_tokens(stub: LocalEngine) -> None:
    stub.request_log = log = FakeLog()  # type: ignore[assignment]
    request = asked(stream=True)
    async with stub.call(request) as reply:
        assert reply.stream is not None
        async for _ in reply.stream:
            pass

    (line,) = log.lines
    assert (line.operation, line.output_tokens, line.status, line.outcome) == (
        "responses",
        24,
        200,
        "completed",
    )
    assert request.counts.output == 24
    assert request.counts.input == line.input_tokens > 0


async def test_nothing_is_stored(stub: LocalEngine, serving: Serving) -> None:
    await whole(stub)
    await whole(stub, store=False)
    await frames_of(stub)

    handler = serving.state.openai_serving_responses
    assert not handler.response_store
    assert not handler.msg_store
    assert not handler.event_store


async def test_ids_of_equal_requests_are_equal_and_of_others_not(stub: LocalEngine) -> None:
    first, again, other = [
        (await whole(stub, input=text))["output"][0]["id"] for text in ("sea", "sea", "tide")
    ]

    assert first == again != other
    assert (await whole(stub))["id"] == "resp_r-1"


async def test_tools_of_a_server_are_left_out_beside_the_clients(stub: LocalEngine) -> None:
    response = await whole(stub, tools=[WEATHER, SEARCH])

    assert [tool["type"] for tool in response["tools"]] == ["function"]


PART = {"type": "input_text", "text": "sea"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_file", "file_id": "x"}]}
NAMESPACE = {
    "type": "namespace",
    "name": "sea",
    "description": "sea",
    "tools": [{"type": "function", "name": "tide", "parameters": True}],
}


def message(*parts: Any, role: str = "user") -> dict[str, Any]:
    return {"input": [{"type": "message", "role": role, "content": list(parts)}]}


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"input": None}, "missing_field", "input"),
        ({"input": 5}, "invalid_value", "input"),
        ({"input": []}, "invalid_value", "input"),
        ({"input": [5]}, "invalid_value", "input[0]"),
        ({"input": [{}]}, "missing_field", "input[0].content"),
        ({"input": [{"role": "user"}]}, "missing_field", "input[0].content"),
        ({"input": [{"role": "nobody", "content": "sea"}]}, "invalid_value", "input[0].role"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "invalid_value", "input[0].type"),
        ({"input": [{"type": "reasoning"}]}, "missing_field", "input[0].summary"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "missing_field", "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "missing_field", "input[0].output"),
        (message({"type": "input_text"}), "missing_field", "input[0].content[0].text"),
        (message({"type": "input_text", "text": 5}), "invalid_value", "input[0].content[0].text"),
        (message({"type": "nonsense"}), "invalid_value", "input[0].content[0].type"),
        (message({"type": "input_file", "file_id": "f"}), "unsupported_feature", "input[0].content[0]"),
        (
            message(PART, {"type": "input_image", "image_url": "http://sea/"}),
            "unsupported_feature",
            "input[0].content[1]",
        ),
        ({"input": [OUTPUT]}, "unsupported_feature", "input[0].output[0]"),
        ({"tools": [WEATHER], "tool_choice": {**ALLOWED, "tools": []}}, "invalid_value", "tool_choice.tools"),
        (
            {"tools": [WEATHER], "tool_choice": {**ALLOWED, "tools": [{"type": "function", "name": "g"}]}},
            "invalid_value",
            "tool_choice.tools",
        ),
        ({"tools": [NAMESPACE], "tool_choice": "required"}, "invalid_value", "tools"),
        ({"input": "sea " * 2000}, "context_length_exceeded", "input"),
        ({"previous_response_id": "resp_1"}, "unsupported_feature", "previous_response_id"),
        ({"conversation": "conv_1"}, "unsupported_feature", "conversation"),
        ({"background": True}, "unsupported_feature", "background"),
        ({"store": True}, "unsupported_feature", "store"),
        ({"prompt": {"id": "p"}}, "invalid_value", "prompt"),
        ({"previous_input_messages": [{"role": "user"}]}, "unsupported_feature", "previous_input_messages"),
        ({"max_output_tokens": 0}, "invalid_value", "max_output_tokens"),
        ({"max_output_tokens": 1 << 40}, "invalid_value", "max_output_tokens"),
        ({"max_output_tokens": 100_000}, "context_length_exceeded", "max_output_tokens"),
        ({"temperature": "hot"}, "invalid_value", "temperature"),
        ({"top_p": 2}, "invalid_value", "top_p"),
        ({"top_k": 10**12}, "invalid_value", "top_k"),
        ({"top_logprobs": 50, "include": ["message.output_text.logprobs"]}, "invalid_value", "top_logprobs"),
        ({"include": ["nonsense"]}, "invalid_value", "include[0]"),
        ({"stop_token_ids": [10**9]}, "invalid_value", "stop_token_ids"),
        ({"logit_bias": {"x": 1}}, "invalid_value", "logit_bias"),
        ({"cache_salt": ""}, "invalid_value", "cache_salt"),
        ({"truncation": "never"}, "invalid_value", "truncation"),
        ({"reasoning": {"effort": "much"}}, "invalid_value", "reasoning.effort"),
        ({"text": {"format": {"type": "json_schema"}}}, "missing_field", "text.format.name"),
        ({"tools": [SEARCH]}, "unsupported_feature", "tools"),
        ({"tools": [{"type": "nonsense"}]}, "invalid_value", "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "missing_field", "tools[0].name"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "web_search_preview"}},
            "unsupported_feature",
            "tool_choice",
        ),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "g"}},
            "invalid_value",
            "tool_choice",
        ),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)
async def test_bad_body_is_a_400_that_names_the_field(
    stub: LocalEngine, body: dict[str, Any], code: str, param: str
) -> None:
    with pytest.raises(ApiError) as caught:
        await whole(stub, **body)

    assert (caught.value.status, caught.value.code, caught.value.param) == (400, code, param)
    assert caught.value.message


async def test_model_without_generation_has_no_responses(serving: Serving) -> None:
    with pytest.raises(ApiError, match="responses"):
        await create_response(Serving(serving.engine, type(serving.state)()), asked())


async def test_an_agents_conversation_is_answered(engine: LocalEngine) -> None:
    first = await whole(engine, input="What is the weather in Oslo?", tools=[WEATHER], max_output_tokens=80)
    (call,) = first["output"]
    assert (call["type"], call["name"]) == ("function_call", "get_weather")

    second = await whole(
        engine,
        instructions="You are brief.",
        input=[
            {"role": "user", "content": [{"type": "input_text", "text": "What is the weather in Oslo?"}]},
            call,
            {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"},
        ],
        tools=[WEATHER],
    )
    assert second["status"] in ("completed", "incomplete")


@pytest.mark.parametrize("name", ["get_weather", "get_time"])
async def test_only_an_allowed_tool_is_called(engine: LocalEngine, name: str) -> None:
    tools = [WEATHER, {**WEATHER, "name": "get_time", "description": "The time of a place"}]

    response = await whole(
        engine,
        tools=tools,
        tool_choice={**ALLOWED, "tools": [{"type": "function", "name": name}]},
        max_output_tokens=80,
    )

    assert [(item["type"], item["name"]) for item in response["output"]] == [("function_call", name)]


async def test_structured_output_follows_its_schema(engine: LocalEngine) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
        "additionalProperties": False,
    }
    text = {"format": {"type": "json_schema", "name": "place", "strict": True, "schema": schema}}

    response = await whole(engine, text=text, max_output_tokens=60)

    assert list(json.loads(response["output"][0]["content"][0]["text"])) == ["city"]


async def test_schema_that_does_not_compile_names_the_field(engine: LocalEngine) -> None:
    text = {"format": {"type": "json_schema", "name": "place", "schema": {"type": 5}}}

    with pytest.raises(ApiError) as caught:
        await whole(engine, text=text)

    assert (caught.value.status, caught.value.param) == (400, "text")


@pytest.mark.parametrize(
    "body",
    [
        {"max_output_tokens": 60},
        {"input": "Say hello in Japanese.", "max_output_tokens": 30, "ignore_eos": True},
        {"input": "What is the weather in Oslo?", "max_output_tokens": 80, "tools": [WEATHER]},
        {"tools": [{**WEATHER, "parameters": {"default": {"created_at": 5, "choices": []}}}]},
        {"include": ["message.output_text.logprobs"], "max_output_tokens": 20},
    ],
    ids=["text", "split characters", "tool", "fields of the stream in a tool", "logprobs"],
)
async def test_a_continued_stream_has_the_events_of_an_undisturbed_one(
    engine: LocalEngine, body: dict[str, Any]
) -> None:
    undisturbed = await hear(engine, asked(stream=True, **body))
    expected = joined(events_of(b"".join(undisturbed.chunks)))
    cuts = undisturbed.cuts()

    async def continued(at: int) -> list[bytes]:
        rest = await hear(engine, asked(undisturbed.continuation(at), stream=True, **body))
        return undisturbed.then(at, rest).chunks

    chosen = {*cuts[:2], *cuts[:: 1 + len(cuts) // 4], cuts[-1]}
    for at, chunks in await at_each(chosen, continued):
        events = events_of(b"".join(chunks))
        assert joined(events) == expected, at
        numbers = [event["sequence_number"] for event in events]
        assert numbers == list(range(len(events))), at


def joined(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return events with one delta for each run: a late reader gets several tokens in one.

    Log-probabilities and numbers of cached tokens are left out, and so are the numbers of events.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            left_out = ("input_tokens_details", "logprobs", "sequence_number")
            return {name: plain(item) for name, item in value.items() if name not in left_out}
        return [plain(item) for item in value] if isinstance(value, list) else value

    found: list[dict[str, Any]] = []
    for event in map(plain, events):
        if found and "delta" in event and found[-1]["type"] == event["type"]:
            found[-1]["delta"] += event["delta"]
        else:
            found.append(event)
    return found


async def test_continued_frames_keep_the_first_engines_time() -> None:
    async with front_end(StubEngineCore()) as (_, client):
        continuation = Continuation(((300, 300),), CREATED, ttft_s=0.25)
        async with client.call(asked(continuation, stream=True)) as reply:
            assert reply.stream is not None
            chunks = [chunk async for chunk in reply.stream]
    *_, last = events_of(b"".join(chunks))
    assert last["type"] == "response.incomplete"
    assert last["response"]["created_at"] == CREATED
    assert last["response"]["usage"]["output_tokens"] == 24
