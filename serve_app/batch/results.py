"""Lines of result files, in OpenAI's shape, and the tokens that an answer used. Pure."""

import uuid
from typing import NamedTuple

import msgspec

from serve_app.wire.batches import LineAnswer

EXPIRED = ("batch_expired", "This request could not be executed before the completion window expired.")
CANCELLED = ("batch_cancelled", "The batch was cancelled before this request was executed.")
FAILED = ("batch_failed", "The batch failed before this request was executed. Its `errors` name the reason.")
LOST = ("answer_lost", "The answer to this request is lost, because the object {} is missing or damaged.")


class Tokens(NamedTuple):
    """The tokens of answers, by the names of a batch's columns."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct):
    """Chat completions and embeddings name tokens otherwise than responses."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _Body(msgspec.Struct):
    usage: _Usage | None = None


_body = msgspec.json.Decoder(_Body)


def is_success(answer: LineAnswer) -> bool:
    """Whether the answer belongs into the output file. Others belong into the error file."""
    return 200 <= answer.status < 300


def tokens_of(body: bytes) -> Tokens:
    """Return the tokens that the body of an answer names; none if it names none."""
    try:
        usage = _body.decode(body).usage
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        usage = None
    if usage is None:
        return Tokens()
    cached = usage.prompt_tokens_details or usage.input_tokens_details or _Details()
    reasoned = usage.completion_tokens_details or usage.output_tokens_details or _Details()
    return Tokens(
        usage.prompt_tokens or usage.input_tokens or 0,
        cached.cached_tokens or 0,
        usage.completion_tokens or usage.output_tokens or 0,
        reasoned.reasoning_tokens or 0,
    )


def answered_line(custom_id: str, answer: LineAnswer) -> bytes:
    """Return the line of an answered request, without the end of the line."""
    response = {
        "status_code": answer.status,
        "request_id": answer.request_id,
        "body": msgspec.Raw(answer.body.replace(b"\n", b" ")),  # in JSON only between two tokens
    }
    return msgspec.json.encode(
        {"id": answer.request_id, "custom_id": custom_id, "response": response, "error": None}
    )


def unanswered_line(custom_id: str, reason: tuple[str, str]) -> bytes:
    """Return the line of a request without an answer, for a reason such as `EXPIRED`."""
    code, message = reason
    request_id = f"batch_req_{uuid.uuid4().hex}"
    error = {"code": code, "message": message}
    return msgspec.json.encode({"id": request_id, "custom_id": custom_id, "response": None, "error": error})
