import json
import logging
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.exceptions import VLLMNotFoundError, VLLMValidationError
from vllm.v1.engine.exceptions import EngineDeadError

from serve_app.api.dialect import COMPLETIONS
from serve_app.api.errors import ApiError
from serve_app.engine.api_errors import field_path, from_exception, from_frame, from_response, from_validation
from tests.engine.local import ErrorInfo, ErrorResponse

CHAT = TypeAdapter(ChatCompletionRequest)


@pytest.mark.parametrize(
    ("location", "path"),
    [
        (("messages",), "messages"),
        (("messages", 0, "ChatCompletionUserMessageParam", "content", "str"), "messages[0].content"),
        (("messages", 3, "role"), "messages[3].role"),
        (("stream_options", "include_usage"), "stream_options.include_usage"),
        (("input", "list[union[int,str]]", 2), "input[2]"),
        (("prompt", "constrained-str"), "prompt"),
        (("prompt", "nullable", "list", 1), "prompt[1]"),
        (("function-after[check(), Request]", "n"), "n"),
        (("EmbeddingChatRequest", "messages"), "EmbeddingChatRequest.messages"),
        (("tools", 0, "function", "name"), "tools[0].function.name"),
        ((), None),
    ],
)
def test_pydantic_location_becomes_path_in_body(location: tuple[int | str, ...], path: str | None) -> None:
    assert field_path(location) == path


def refused(body: str) -> ApiError:
    with pytest.raises(ValidationError) as caught:
        CHAT.validate_json(body)
    error = from_validation(caught.value)
    assert error.status == 400
    return error


@pytest.mark.parametrize(
    ("body", "param", "code", "message"),
    [
        ({}, "messages", "missing_field", "messages: required, and not given."),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "missing_field", "messages[0].role: required"),
        ({"messages": "hello"}, "messages", "invalid_value", "messages = 'hello': Input should be "),
        (
            {"messages": [], "temperature": "hot"},
            "temperature",
            "invalid_value",
            "temperature = 'hot': Input",
        ),
        (
            {"messages": [], "stream": True, "stream_options": {"include_usage": "x"}},
            "stream_options.include_usage",
            "invalid_value",
            "stream_options.include_usage = 'x': Input should be ",
        ),
        ({"messages": [], "logit_bias": {"5": "b"}}, "logit_bias.5", "invalid_value", "logit_bias.5 = 'b': "),
        ([], None, "invalid_value", "Input should be"),
    ],
)
def test_error_names_field_value_and_bound(body: Any, param: str | None, code: str, message: str) -> None:
    error = refused(json.dumps(body))

    assert (error.param, error.code) == (param, code)
    assert error.message.startswith(message)


def test_a_long_value_is_not_repeated_whole() -> None:
    assert len(refused(json.dumps({"messages": "x" * 100_000})).message) < 300


def response(status: int, message: str = "no", param: str | None = None) -> ErrorResponse:
    return ErrorResponse(error=ErrorInfo(message=message, type="any", code=status, param=param))


LONG = "This model's maximum context length is 2048 tokens. However, you requested 5000."
LONGER = "The prompt (5000 tokens) is longer than max_model_len=2048"


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (response(400, "no", "n"), (400, "n", "invalid_value")),
        (response(422), (422, None, "invalid_value")),
        (response(404), (404, "model", "model_not_found")),
        (response(404, "no", "lora"), (404, "lora", "model_not_found")),
        (response(501), (400, None, "unsupported_feature")),
        (response(500), (500, None, "engine_error")),
        (response(503), (503, None, "engine_error")),
        (response(400, LONG, "messages"), (400, "messages", "context_length_exceeded")),
        (response(400, LONGER), (400, None, "context_length_exceeded")),
        (response(400, "Maximum model length exceeded"), (400, None, "context_length_exceeded")),
        (VLLMValidationError("n is odd", parameter="n", value=3), (400, "n", "invalid_value")),
        (VLLMNotFoundError("no such adapter"), (404, "model", "model_not_found")),
        (ValueError("top_k must be positive"), (400, None, "invalid_value")),
        (NotImplementedError("beam search"), (400, None, "unsupported_feature")),
        (RuntimeError("CUDA out of memory"), (500, None, "engine_error")),
        (EngineDeadError(), (503, None, "engine_died")),
        (ApiError(429, "later", code="queue_full"), (429, None, "queue_full")),
    ],
)
def test_vllms_error_says_whose_fault_it_is_and_servers_is_logged(
    error: Any, answer: tuple[int, str | None, str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "ray.serve"):
        failure = from_exception(error) if isinstance(error, Exception) else from_response(error)

    assert (failure.status, failure.param, failure.code) == answer
    assert bool(caplog.records) == (isinstance(error, Exception) and answer[0] == 500)


def frame(document: Any) -> bytes:
    """A frame as vLLM's stream generators write it."""
    return f"data: {json.dumps(document)}\n\n".encode()


@pytest.mark.parametrize(("code", "status"), [(501, 400), (400, 400), (503, 503), (None, 500), ("bad", 500)])
def test_stream_error_has_a_status_without_vllms(code: Any, status: int) -> None:
    error = from_frame(frame({"error": {"message": "no", "code": code}}))

    assert error.status == status


@pytest.mark.parametrize(
    "other",
    [
        b"data: [DONE]\n\n",
        frame({"choices": [{"delta": {"content": 'data: {"error": 1}'}}]}),
        frame({"id": "c", "error": None}),
    ],
)
def test_other_frames_are_no_errors(other: bytes) -> None:
    assert not other.startswith(COMPLETIONS.error_frame)
