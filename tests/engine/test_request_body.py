"""From bodies to vLLM's own request models, and what their errors name."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.exceptions import VLLMValidationError

from serve_app.api.body import peek
from serve_app.api.errors import ApiError
from serve_app.engine.chat_operations import TOKENIZE
from serve_app.engine.pooling_operations import EMBEDDING
from serve_app.engine.request_body import RequestModel, name_field_in_errors
from serve_app.engine.speech_operations import SPEECH

CHAT = RequestModel(ChatCompletionRequest)
TEXT = RequestModel(CompletionRequest)
SEA = {"role": "user", "content": "sea"}
NAMED = {"type": "function", "function": {"name": "a"}}
TOOL = {"type": "function", "function": {"name": "b"}}
PICTURE = {"type": "image_url", "image_url": {"url": "http://127.0.0.1/"}}
TEXT_ONLY: Any = SimpleNamespace(is_multimodal_model=False, enable_prompt_embeds=False)
MULTIMODAL: Any = SimpleNamespace(is_multimodal_model=True, enable_prompt_embeds=False)


def chat(**fields: Any) -> Any:
    return CHAT.parse(json.dumps({"messages": [SEA], **fields}).encode(), TEXT_ONLY)


def refused(model: RequestModel, config: Any = TEXT_ONLY, /, **body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        model.parse(json.dumps(body).encode(), config)
    assert caught.value.status == 400
    return caught.value


def test_null_counts_as_not_given_only_at_the_top() -> None:
    names = [name for name in ChatCompletionRequest.model_fields if name != "messages"]

    request = chat(**dict.fromkeys(names))

    assert request.model_fields_set == {"messages"}
    answer: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": []}
    assert chat(messages=[SEA, answer]).messages[1]["content"] is None
    assert refused(CHAT, messages=None).code == "missing_field"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": "assistant", "tool_calls": 5}]}, "messages[0].tool_calls"),
        ({"messages": 5}, "messages"),
        ({"messages": [5]}, "messages[0]"),
        ({"messages": [SEA, {"role": "user", "content": 5}]}, "messages[1].content"),
        ({"messages": [{"author": {"role": "user"}, "content": []}]}, "messages[0]"),
        ({"tool_choice": [], "tools": [{"function": {"name": "a"}}]}, "tool_choice"),
        ({"tools": [{"function": {}}]}, "tools[0].function.name"),
        ({"tools": [{"function": {"name": "a", "parameters": 5}}]}, "tools[0].function.parameters"),
        ({"tools": [{"type": "function"}], "tool_choice": NAMED}, "tools[0].function"),
        ({"tools": [{"function": {}}], "tool_choice": NAMED}, "tools[0].function.name"),
        ({"tools": [TOOL, {"type": "function"}], "tool_choice": NAMED}, "tools[1].function"),
        ({"response_format": 5}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": 5}}, "response_format.json_schema"),
        ({"top_logprobs": {}}, "top_logprobs"),
        ({"stream": True, "stream_options": 5}, "stream_options"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": []}, "structured_outputs"),
        ({"structured_outputs": "x"}, "structured_outputs"),
        ({"cache_salt": 5}, "cache_salt"),
        ({"repetition_detection": []}, "repetition_detection"),
    ],
)
def test_a_wrong_value_is_named_by_its_path(fields: dict[str, Any], param: str) -> None:
    assert refused(CHAT, **{"messages": [SEA], **fields}).param == param


@pytest.mark.parametrize(
    ("model", "body", "param"),
    [
        (TOKENIZE, {"messages": [SEA], "add_generation_prompt": "maybe"}, "add_generation_prompt"),
        (TOKENIZE, {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        (TOKENIZE, {}, "prompt"),
        (EMBEDDING, {"messages": [SEA], "add_special_tokens": "maybe"}, "add_special_tokens"),
        (EMBEDDING, {"input": "sea", "priority": "high"}, "priority"),
        (EMBEDDING, {}, "input"),
    ],
)
def test_error_concerns_the_intended_kind_of_body(
    model: RequestModel, body: dict[str, Any], param: str
) -> None:
    assert refused(model, **body).param == param


@pytest.mark.parametrize("role", ["user", "other"])
@pytest.mark.parametrize(
    ("part", "param", "code"),
    [
        ({"type": "text"}, ".text", "missing_field"),
        ({"type": "text", "text": 5}, ".text", "invalid_value"),
        ({"type": "refusal", "refusal": 5}, ".refusal", "invalid_value"),
        ({"type": "thinking"}, ".thinking", "missing_field"),
        ({"type": 5, "text": "a"}, ".type", "invalid_value"),
        ({"text": "a"}, ".type", "missing_field"),
    ],
)
def test_a_bad_part_is_named_with_its_message(role: str, part: dict[str, Any], param: str, code: str) -> None:
    fine = {"type": "text", "text": "a"}
    message = {"role": role, "content": [fine, part], "tool_call_id": "a"}

    error = refused(CHAT, messages=[SEA, message])

    assert (error.param, error.code) == (f"messages[1].content[1]{param}", code)
    assert error.message.startswith(f"messages[1].content[1]{param}")


@pytest.mark.parametrize(
    "part",
    [
        PICTURE,
        {"image_url": "http://127.0.0.1/"},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "file", "file": {}},
    ],
)
@pytest.mark.parametrize("model", [CHAT, EMBEDDING, TOKENIZE])
def test_a_model_of_text_refuses_media_without_reading_them(
    model: RequestModel, part: dict[str, Any]
) -> None:
    error = refused(model, messages=[{"role": "user", "content": [part]}])

    assert error.param == "messages[0].content[0]"
    assert error.code == "unsupported_feature"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": [SEA, {"role": "tool", "content": [{"type": "text"}]}]}, "input[1].content[0].text"),
        ({"messages": [[SEA], [{"role": "user", "content": [PICTURE]}]]}, "messages[1][0].content[0]"),
    ],
)
def test_parts_of_conversations_to_embed_are_named(body: dict[str, Any], param: str) -> None:
    assert refused(EMBEDDING, **body).param == param


@pytest.mark.parametrize("config", [TEXT_ONLY, MULTIMODAL])
@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "image_url", "image_url": {"url": 5}}, "messages[0].content[0].image_url.url"),
        ({"type": "image_url", "image_url": ["x"]}, "messages[0].content[0].image_url"),
        ({"type": "file", "file": 5}, "messages[0].content[0].file"),
        ({"type": "nonsense"}, "messages[0].content[0].type"),
    ],
)
def test_media_of_a_wrong_type_are_named(config: Any, part: dict[str, Any], param: str) -> None:
    assert refused(CHAT, config, messages=[{"role": "user", "content": [part]}]).param == param


@pytest.mark.parametrize(
    ("fields", "raised", "param"),
    [
        ({"vllm_xargs": {"a": 1}}, VLLMValidationError("no", parameter="extra_args"), "vllm_xargs"),
        (
            {"logprobs": True, "top_logprobs": 5},
            VLLMValidationError("no", parameter="logprobs"),
            "top_logprobs",
        ),
        (
            {"max_completion_tokens": 5},
            VLLMValidationError("no", parameter="max_tokens"),
            "max_completion_tokens",
        ),
        ({}, VLLMValidationError("no", parameter="input_tokens"), "messages"),
        ({"min_p": 5}, VLLMValidationError("min_p must be in [0, 1], got 5."), "min_p"),
        ({}, VLLMValidationError("no", parameter="temperature"), "temperature"),
        ({}, VLLMValidationError("Something else"), None),
        (
            {"messages": [SEA, {"role": "user", "content": ["a", PICTURE]}]},
            VLLMValidationError("no such picture", parameter="image_url.url"),
            "messages[1].content[1].image_url.url",
        ),
    ],
)
def test_vllms_parameter_is_named_as_in_the_body(
    fields: dict[str, Any], raised: Exception, param: str | None
) -> None:
    request = CHAT.parse(json.dumps({"messages": [SEA], **fields}).encode(), MULTIMODAL)

    with pytest.raises(ApiError) as caught, name_field_in_errors(request):
        raise raised

    assert (caught.value.status, caught.value.param) == (400, param)


# The ingress reads some fields too, before any model of vLLM does.

BODIES: dict[str, tuple[RequestModel, dict[str, Any]]] = {
    "chat_completions": (CHAT, {"messages": [SEA]}),
    "completions": (TEXT, {"prompt": "sea"}),
    "responses": (RequestModel(ResponsesRequest, "input"), {"input": "sea"}),
    "messages": (RequestModel(AnthropicMessagesRequest), {"messages": [SEA], "model": "a", "max_tokens": 3}),
    "transcriptions": (SPEECH["transcriptions"][1], {}),
    "translations": (SPEECH["translations"][1], {}),
}
BOUNDS = ("max_completion_tokens", "max_tokens", "max_output_tokens")

_loose = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 300),
    st.sampled_from(
        [0.0, 1.0, 7.0, 7.5, 1e9, 10**30, [], {}, [True], " ", "", "\ud7ff", "1e1", " 7 ", "007", "+7"]
    ),
    st.sampled_from(["true", "TRUE", "yes", "on", "t", "y", "1", "false", "no", "off", "0", "null", " true"]),
)
_given = st.lists(
    st.tuples(st.sampled_from(["stream", "str\\u0065am", "model", "n", *BOUNDS]), _loose), max_size=4
)


@settings(max_examples=150)
@given(st.sampled_from(sorted(BODIES)), _given)
@example("chat_completions", [("stream", 1)])
@example("completions", [("stream", "yes")])
@example("messages", [("stream", "true")])
@example("chat_completions", [("max_completion_tokens", "7"), ("n", "2")])
@example("completions", [("max_completion_tokens", 1), ("max_tokens", 300)])
@example("chat_completions", [("stream", True), ("stream", None)])
def test_the_ingress_reads_fields_as_the_engine_does(operation: str, given: list[tuple[str, Any]]) -> None:
    model, rest = BODIES[operation]
    members = [*rest.items(), *given]
    body = b"{%s}" % ",".join(f'"{name}":{json.dumps(value)}' for name, value in members).encode()
    try:
        found, request = peek(body), model.parse(body, TEXT_ONLY)
    except ApiError:  # either refuses it
        return

    assert found.wants_stream == bool(request.stream)
    assert found.model == request.model
    last = dict(members)
    fields = type(request).model_fields  # vLLM's models keep other fields, and ignore them
    read = {name: value for name, value in request.model_dump().items() if name in fields}
    counts = [read.get(name) for name in BOUNDS if name in read and last.get(name) is not None]
    choices = read.get("n", 1) if last.get("n") is not None else 1
    if all(0 <= count < 10**9 for count in counts) and ("n" in read or "n" not in last):
        assert found.answer_bound(operation) == (counts[0] * (choices or 1) if counts else None)
