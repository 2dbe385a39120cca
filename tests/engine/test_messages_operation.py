"""Anthropic's Messages on vLLM's handler: the shapes, the errors, and streams cut anywhere and continued."""

import json
import uuid
from typing import Any

import pytest

from serve_app.api.engine_client import EngineReply, Operation
from serve_app.api.errors import ApiError
from serve_app.engine.chat_operations import Serving
from serve_app.engine.engine_call import EngineCall
from serve_app.engine.local_client import LocalEngine
from serve_app.settings.tree import ModelSettings
from tests.engine.calls import changed, engine_call
from tests.engine.local import FakeLog
from tests.engine.streams import Heard, at_each, hear
from tests.engine.stub_engine_core import StubEngineCore, front_end

SEA = [{"role": "user", "content": "Tell me about the sea."}]
TOOL = {
    "name": "get_weather",
    "description": "The weather of a place",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "cache_control": {"type": "ephemeral"},
}
FORMAT = {
    "type": "json_schema",
    "schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
REMOTE = {"type": "image", "source": {"type": "url", "url": "http://169.254.169.254/latest"}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}


def call(operation: Operation = "messages", request_id: str = "r-1", **fields: Any) -> EngineCall:
    body = {"model": "tide", "messages": SEA, "max_tokens": 8, "temperature": 0, **fields}
    if operation == "count_tokens":
        body.pop("max_tokens")
    given = {name: value for name, value in body.items() if value is not ...}
    return engine_call(operation, json.dumps(given).encode(), request_id)


async def document(engine: LocalEngine, request: EngineCall) -> Any:
    async with engine.call(request) as reply:
        assert isinstance(reply, EngineReply)
        assert reply.status == 200
        return json.loads(reply.body)


async def refusal(engine: LocalEngine, request: EngineCall) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await document(engine, request)
    return caught.value


@pytest.fixture
def local(serving: Serving) -> LocalEngine:
    """vLLM's front end around a stub of the engine core."""
    return LocalEngine(serving, ModelSettings(name="tide"), lambda _: None)


def events(chunks: list[bytes]) -> list[dict[str, Any]]:
    """The documents of a stream's events, each of which has its type as its name."""
    *frames, rest = b"".join(chunks).split(b"\n\n")
    assert rest == b""
    found = []
    for frame in frames:
        name, data = frame.split(b"\n")
        found.append(json.loads(data.removeprefix(b"data: ")))
        assert name == b"event: " + found[-1]["type"].encode()
    return found


def said(chunks: list[bytes]) -> dict[str, Any]:
    """A stream's message, as a client builds it. It checks the order of the events."""
    start, *middle, delta, stop = events(chunks)
    assert (start["type"], delta["type"], stop["type"]) == ("message_start", "message_delta", "message_stop")
    message: dict[str, Any] = {**start["message"], **delta["delta"], "usage": delta["usage"]}
    blocks: list[dict[str, Any]] = []
    open_block = False
    for event in middle:
        kind = event["type"]
        if kind == "content_block_start":
            assert (open_block, event["index"]) == (False, len(blocks))
            blocks.append({**event["content_block"], "json": ""})
        else:
            assert (open_block, event["index"]) == (True, len(blocks) - 1)
        open_block = kind != "content_block_stop"
        if kind == "content_block_delta":
            block = blocks[-1]
            block["text"] = block.get("text", "") + event["delta"].get("text", "")
            block["json"] += event["delta"].get("partial_json", "")
    assert not open_block
    for block in blocks:
        block["id"] = bool(block.get("id"))  # drawn
    return {**message, "content": blocks}


async def test_a_message_has_anthropics_shape(engine: LocalEngine) -> None:
    answer = await document(engine, call(max_tokens=12))

    assert (answer["type"], answer["role"], answer["model"]) == ("message", "assistant", "tide")
    assert answer["stop_reason"] == "max_tokens"
    (block,) = answer["content"]
    assert block["type"] == "text"
    assert len(block["text"]) > 20
    assert answer["usage"]["output_tokens"] == 12


async def test_a_stream_says_the_same_as_a_whole_message(engine: LocalEngine) -> None:
    for fields in ({"max_tokens": 30}, {"max_tokens": 80, "tools": [TOOL], "tool_choice": {"type": "any"}}):
        whole = await document(engine, call(**fields))
        streamed = said((await hear(engine, call(stream=True, **fields))).chunks)

        assert [block["type"] for block in streamed["content"]] == [
            block["type"] for block in whole["content"]
        ]
        for one, other in zip(streamed["content"], whole["content"], strict=True):
            assert one.get("text", "") == other.get("text", "")
            assert json.loads(one["json"] or "null") == other.get("input")
        assert streamed["stop_reason"] == whole["stop_reason"]
        assert streamed["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


async def test_a_model_that_does_not_think_keeps_within_any_budget() -> None:
    core = StubEngineCore()
    async with front_end(core, max_model_len=2048) as (_, engine):
        await document(engine, call(thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=1025))

    (request,) = core.requests
    assert (request.sampling_params.max_tokens, request.sampling_params.thinking_token_budget) == (1025, None)


async def test_a_prompt_is_counted_as_it_is_answered(engine: LocalEngine) -> None:
    fields = {"system": "Be brief.", "tools": [TOOL]}
    counted = await document(engine, call("count_tokens", **fields))
    usage = (await document(engine, call(cache_salt="a", **fields)))["usage"]

    assert counted["input_tokens"] == usage["input_tokens"] > 20
    assert usage["cache_read_input_tokens"] == 0


async def test_the_contract_of_claude_code_is_accepted(engine: LocalEngine) -> None:
    ephemeral = {"cache_control": {"type": "ephemeral"}}
    fields = {
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=0f;"},
            {"type": "text", "text": "You are Claude Code.", **ephemeral},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Weather in Oslo?"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "I need the tool.", "signature": "ab"},
                    {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain", **ephemeral},
                    {"type": "text", "text": "So?", **ephemeral},
                ],
            },
        ],
        "tools": [TOOL],
        "metadata": {"user_id": "user_0_account__session_1"},
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "medium"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "stop_sequences": ["\n\nHuman:"],
        "temperature": 1,
    }
    streamed = said((await hear(engine, call(stream=True, **fields))).chunks)
    counted = await document(engine, call("count_tokens", **fields))

    assert streamed["usage"]["input_tokens"] == counted["input_tokens"]
    other_header = [{"type": "text", "text": "x-anthropic-billing-header: cch=1a;"}, fields["system"][1]]
    again = await document(engine, call("count_tokens", **{**fields, "system": other_header}))
    assert again == counted


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": ...}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**12}, "max_tokens"),
        ({"max_tokens": 9999}, "max_tokens"),
        ({"model": ...}, "model"),
        ({"messages": ...}, "messages"),
        ({"messages": "sea"}, "messages"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "poem"}]}]}, "messages[0].content[0].type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
            "messages[0].content[0].text",
        ),
        ({"messages": [{"role": "user", "content": "a" * 100_000}]}, "messages"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0]"),
        ({"temperature": 5}, "temperature"),
        ({"temperature": 1e300}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"top_k": 10**10}, "top_k"),
        ({"top_k": -5}, "top_k"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stop_sequences": ["a"] * 100}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"system": 5}, "system"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"tools": [TOOL], "tool_choice": {"type": "any", "name": 5}}, "tool_choice.name"),
        ({"tool_choice": {"type": "maybe"}}, "tool_choice.type"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"format": {**FORMAT, "schema": {"type": "poem"}}}}, "output_config"),
        ({"metadata": "x"}, "metadata"),
        ({"stream": "maybe"}, "stream"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"vllm_xargs": {"a": {}}}, "vllm_xargs.a"),
    ],
)
async def test_a_bad_body_is_a_400_that_names_its_field(
    engine: LocalEngine, fields: dict[str, Any], param: str
) -> None:
    error = await refusal(engine, call(**fields))

    assert (error.status, error.param) == (400, param)
    assert error.message


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"messages": []}, "at least one message"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}, "max_tokens": 50}, "budget_tokens = 5"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "less than max_tokens"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "nope"}}, "'nope' is not found"),
    ],
)
async def test_a_bad_body_is_a_400_that_says_why(
    engine: LocalEngine, fields: dict[str, Any], told: str
) -> None:
    error = await refusal(engine, call(**fields))

    assert error.status == 400
    assert told in error.message


async def test_an_error_of_the_chat_behind_a_stream_keeps_its_status(engine: LocalEngine) -> None:
    schema = {"$ref": "#/missing"}
    error = await refusal(engine, call(stream=True, output_config={"format": {**FORMAT, "schema": schema}}))

    assert error.status == 400
    assert "missing" in error.message


@pytest.mark.parametrize("operation", ["messages", "count_tokens"])
@pytest.mark.parametrize(
    ("content", "param"),
    [
        ([REMOTE], "messages[0].content[0].source.url"),
        (
            [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "x"}, REMOTE]}],
            "messages[0].content[0].content[1].source.url",
        ),
    ],
    ids=["image", "result of a tool"],
)
async def test_an_image_comes_from_allowed_hosts_only(
    serving: Serving,
    local: LocalEngine,
    monkeypatch: pytest.MonkeyPatch,
    operation: Operation,
    content: list[Any],
    param: str,
) -> None:
    monkeypatch.setattr(type(serving.engine.model_config), "is_multimodal_model", True)

    error = await refusal(local, call(operation, messages=[{"role": "user", "content": content}]))

    assert (error.status, error.code, error.param) == (400, "invalid_value", param)
    assert "allowed_media_domains" in error.message


FORCED = {
    # As litellm 1.110 translates a `tool_choice` of OpenAI's.
    "messages": [{"role": "user", "content": [{"type": "text", "text": "Weather?"}]}],
    "tools": [
        {
            "name": "get_weather",
            "input_schema": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 5}},
                "required": ["city"],
                "additionalProperties": False,
            },
            "type": "custom",
        }
    ],
    "tool_choice": {"type": "tool", "name": "get_weather"},
    "max_tokens": 60,
}


@pytest.mark.parametrize("arguments", ["false", "[1]", '"Oslo"'])
async def test_arguments_that_are_no_object_are_not_blamed_on_messages(arguments: str) -> None:
    core = StubEngineCore()
    async with front_end(core, tool_call_parser="hermes") as (serving, engine):
        said_by_model = f'<tool_call>\n{{"name": "get_weather", "arguments": {arguments}}}\n</tool_call>'
        core.answer = serving.engine.get_tokenizer().encode(said_by_model, add_special_tokens=False)
        asked = call(**{**FORCED, "max_tokens": len(core.answer)})
        error = await refusal(engine, asked)

    assert (error.status, error.param, error.code) == (400, "tools", "invalid_tool_call")
    (sent,) = core.requests  # all of it was computed, and counts
    assert (asked.counts.input, asked.counts.output) == (
        len(sent.prompt_token_ids),
        len(core.answer),
    )
    assert "strict: true" in error.message


async def test_a_strict_tool_gets_arguments_of_its_schema(engine: LocalEngine) -> None:
    strict = [tool | {"strict": True} for tool in FORCED["tools"]]  # type: ignore[attr-defined]
    (block,) = (await document(engine, call(**{**FORCED, "tools": strict})))["content"]

    assert (block["type"], block["name"]) == ("tool_use", "get_weather")
    assert len(block["input"]["city"]) <= 5


async def test_keys_do_not_share_prefixes() -> None:
    core = StubEngineCore()
    async with front_end(core) as (_, engine):
        for salt, own in (("", None), ("key-a", None), ("key-b", None), ("key-a", "mine")):
            await document(engine, changed(call(cache_salt=own), cache_salt=salt))

    salts = [request.cache_salt for request in core.requests]
    assert salts[:3] == [None, "key-a", "key-b"]
    assert len(set(salts)) == 4


async def test_usage_tells_cached_tokens_apart() -> None:
    core = StubEngineCore()
    core.cached_tokens = 4
    async with front_end(core) as (_, engine):
        counted = (await document(engine, call("count_tokens")))["input_tokens"]
        whole = (await document(engine, call(max_tokens=3)))["usage"]
        streamed = said((await hear(engine, call(max_tokens=3, stream=True))).chunks)["usage"]

    for usage in (whole, streamed):
        assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (counted - 4, 4)
        assert usage["output_tokens"] == 3


async def test_a_message_is_a_line_of_the_request_log_and_a_count_is_none(local: LocalEngine) -> None:
    log = FakeLog()
    local.request_log = log  # type: ignore[assignment]
    await document(local, call("count_tokens"))
    await hear(local, call(stream=True, max_tokens=3))

    (line,) = log.lines
    assert (line.operation, line.status, line.outcome, line.output_tokens) == (
        "messages",
        200,
        "completed",
        3,
    )
    assert line.input_tokens > 5


async def test_a_model_without_text_has_no_messages() -> None:
    async with front_end(StubEngineCore(("embed",)), task="embed") as (_, engine):
        for operation in ("messages", "count_tokens"):
            error = await refusal(engine, call(operation))
            assert (error.status, error.code) == (400, "unsupported_feature")


async def continued(engine: LocalEngine, fields: dict[str, Any], before: Heard, cut: int) -> list[bytes]:
    """The frames that a client gets of a stream that is cut, and continued on another engine."""
    rest = await hear(engine, changed(uncached(fields), continuation=before.continuation(cut)))
    return before.then(cut, rest).chunks


def uncached(fields: dict[str, Any]) -> EngineCall:
    return changed(call(stream=True, **fields), cache_salt=uuid.uuid4().hex)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 60},
        {"max_tokens": 80, "stop_sequences": ["the sea and"]},
        {
            "max_tokens": 80,
            "tools": [TOOL],
            "messages": [{"role": "user", "content": "The weather in Oslo?"}],
        },
        {"max_tokens": 80, "tools": [TOOL], "tool_choice": {"type": "any"}},
        {"max_tokens": 40, "output_config": {"format": FORMAT}},
    ],
    ids=["text", "stop", "tools", "any tool", "json"],
)
async def test_a_continued_message_says_what_an_undisturbed_one_does(
    engine: LocalEngine, fields: dict[str, Any]
) -> None:
    whole = await hear(engine, uncached(fields))
    cuts = whole.cuts()

    assert cuts
    chosen = {*cuts[:3], *cuts[:: 1 + len(cuts) // 6], *cuts[-2:]}
    for cut, again in await at_each(chosen, lambda cut: continued(engine, fields, whole, cut)):
        assert said(again) == said(whole.chunks), cut
