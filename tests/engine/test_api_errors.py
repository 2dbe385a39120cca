import json
import logging
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.exceptions import VLLMNotFoundError, VLLMValidationError
from vllm.v1.engine.exceptions import EngineDeadError

from serve_app.api.errors import ApiError
from serve_app.engine.api_errors import (
    ERROR_FRAME,
    field_path,
    from_exception,
    from_frame,
    from_response,
    from_validation,
)
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
    ("body", "param"), [("{}", "messages"), ('{"messages":[{"content":"x"}]}', "messages[0].role")]
)
def test_a_missing_field_is_named(body: str, param: str) -> None:
    error = refused(body)

    assert (error.param, error.code) == (param, "missing_field")
    assert error.message == f"{param}: required, and not given."


@pytest.mark.parametrize(
    ("fields", "param", "value"),
    [
        ('"messages":"hello"', "messages", "'hello'"),
        ('"messages":[{"role":"user","content":5}]', "messages[0].content", "5"),
        ('"messages":[],"temperature":"hot"', "temperature", "'hot'"),
        (
            '"messages":[],"stream":true,"stream_options":{"include_usage":"x"}',
            "stream_options.include_usage",
            "'x'",
        ),
        ('"messages":[],"logit_bias":{"5":"b"}', "logit_bias.5", "'b'"),
    ],
)
def test_wrong_value_is_named_with_field_and_bound(fields: str, param: str, value: str) -> None:
    error = refused("{" + fields + "}")

    assert (error.param, error.code) == (param, "invalid_value")
    assert error.message.startswith(f"{param} = {value}: Input should be ")


def test_a_body_that_is_no_object_names_no_field() -> None:
    error = refused("[]")

    assert error.param is None
    assert error.message.startswith("Input should be")


def test_a_long_value_is_not_repeated_whole() -> None:
    assert len(refused(json.dumps({"messages": "x" * 100_000})).message) < 300


def response(status: int, message: str = "no", param: str | None = None) -> ErrorResponse:
    return ErrorResponse(error=ErrorInfo(message=message, type="any", code=status, param=param))


@pytest.mark.parametrize(
    ("status", "param", "answer"),
    [
        (400, "n", (400, "n", "invalid_value")),
        (422, None, (422, None, "invalid_value")),
        (404, None, (404, "model", "model_not_found")),
        (404, "lora", (404, "lora", "model_not_found")),
        (501, None, (400, None, "unsupported_feature")),
        (500, None, (500, None, "engine_error")),
        (503, None, (503, None, "engine_error")),
    ],
)
def test_vllms_statuses_in_terms_of_whose_fault_it_is(
    status: int, param: str | None, answer: tuple[int, str | None, str]
) -> None:
    error = from_response(response(status, param=param))

    assert (error.status, error.param, error.code) == answer
    assert error.message == "no"


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 2048 tokens. However, you requested 5000.",
        "The prompt (5000 tokens) is longer than max_model_len=2048",
        "Maximum model length exceeded",
    ],
)
def test_a_prompt_too_long_has_openais_code_for_it(message: str) -> None:
    error = from_response(response(400, message, "messages"))

    assert (error.status, error.param, error.code) == (400, "messages", "context_length_exceeded")


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (VLLMValidationError("n is odd", parameter="n", value=3), (400, "n", "invalid_value")),
        (VLLMNotFoundError("no such adapter"), (404, "model", "model_not_found")),
        (ValueError("top_k must be positive"), (400, None, "invalid_value")),
        (NotImplementedError("beam search"), (400, None, "unsupported_feature")),
        (RuntimeError("CUDA out of memory"), (500, None, "engine_error")),
        (EngineDeadError(), (503, None, "engine_died")),
        (ApiError(429, "later", code="queue_full"), (429, None, "queue_full")),
    ],
)
def test_only_server_errors_are_logged(
    error: Exception, answer: tuple[int, str | None, str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "ray.serve"):
        failure = from_exception(error)

    assert (failure.status, failure.param, failure.code) == answer
    assert bool(caplog.records) == (answer[0] == 500)


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
    assert not other.startswith(ERROR_FRAME)
