"""Errors in the OpenAI API's shape: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar

import msgspec

from serve_app.settings.settings_error import shown

DONE = b"data: [DONE]\n\n"
"""The last frame of every stream."""
INSUFFICIENT_QUOTA = "insufficient_quota"
"""OpenAI's code and type of a 429 that a wait of seconds does not end."""
MOST_RETRY_S = 120.0
"""Clients of OpenAI and Anthropic do not wait longer before they send a request again."""
ERROR_EVENT = b"event: error\n"
"""The beginning of an error's frame."""
TRACE_ID: ContextVar[str] = ContextVar("trace_id", default="")
"""The id of the trace of the present request, for the bodies of its errors; "" without a trace."""

NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors of msgspec's decoders. Bytes that are not UTF-8 raise no `DecodeError`."""

_LONGEST_TEXT = 500
"""Bytes of an error that is not JSON."""


class _Error(msgspec.Struct):
    message: str | None = None
    param: str | None = None
    code: str | None = None


class _Body(msgspec.Struct):
    error: _Error


class ApiError(Exception):
    """A failure with its HTTP status, sent to the client in OpenAI's shape.

    Args:
        message: For a person: what was wrong, with the value and the bound.
        param: The request field at fault, if there is one.
        code: Machine-readable reason, such as `model_not_found`.
        headers: Extra response headers, such as `Retry-After`.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})
        if float(self.headers.get("Retry-After", 0)) > MOST_RETRY_S:
            self.headers.setdefault("X-Should-Retry", "false")

    @classmethod
    def from_body(cls, status: int, body: bytes, headers: Mapping[str, str]) -> ApiError:
        """Return the error that another process sent as `body`. A proxy's error may be plain text."""
        try:
            found = msgspec.json.decode(body, type=_Body).error
        except NOT_JSON:
            found = _Error(body[:_LONGEST_TEXT].decode(errors="replace").strip())
        return cls(status, found.message or "", param=found.param, code=found.code, headers=headers)

    @property
    def type(self) -> str:
        """OpenAI's type of the error: the client's fault, its budget, or the server's."""
        if self.code == INSUFFICIENT_QUOTA:
            return INSUFFICIENT_QUOTA
        return "invalid_request_error" if self.status < 500 else "server_error"

    def body(self) -> bytes:
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        if trace_id := TRACE_ID.get():
            error["trace_id"] = trace_id
        return msgspec.json.encode({"error": error})

    def frame(self) -> bytes:
        """Return an SSE `error` event, for a stream whose status has already been sent."""
        return ERROR_EVENT + b"data: " + self.body() + b"\n\n"

    def last_frames(self) -> bytes:
        return self.frame() + DONE


def invalid_field(param: str, why: str, code: str = "invalid_value") -> ApiError:
    """A 400 that names the field at fault."""
    return ApiError(400, f"{param}: {why}", param=param, code=code)


def invalid_value(param: str, value: object, why: str, code: str = "invalid_value") -> ApiError:
    """A 400 that names the field at fault and its value."""
    return ApiError(400, f"{param} = {shown(value)}: {why}", param=param, code=code)


def missing_field(param: str | None) -> ApiError:
    """A 400 that names a required field."""
    return ApiError(400, f"{param}: required, and not given.", param=param, code="missing_field")


def internal_error() -> ApiError:
    """A 500 for a fault of the server, before anything was sent. Its cause is logged."""
    return ApiError(500, "The server failed to answer this request.", code="internal_error")


def stream_failed() -> ApiError:
    """A 500 for a fault of the server within a stream, sent as an event."""
    return ApiError(500, "The server failed while streaming this answer.", code="stream_failed")


def invalid_key(problem: str) -> ApiError:
    """A 401 for a client without a valid key or token."""
    headers = {"WWW-Authenticate": "Bearer"}
    return ApiError(401, f"Authorization: {problem}", code="invalid_api_key", headers=headers)


def deadline_exceeded(timeout_s: float) -> ApiError:
    """A 408 for a request that was not answered by its client's deadline."""
    message = f"The answer was not complete within the {timeout_s:g} s of X-Request-Timeout-Seconds."
    # OpenAI's clients retry a 408 twice, so the deadline would be three times as long.
    return ApiError(408, message, code="deadline_exceeded", headers={"X-Should-Retry": "false"})


def not_an_object(error: Exception) -> ApiError:
    """A 400 for a body that is not a JSON object, or has a field of a wrong type."""
    if isinstance(error, RecursionError):
        return ApiError(400, "The body is nested too deeply.", code="invalid_json")
    if not isinstance(error, msgspec.ValidationError):
        return ApiError(400, f"The body is not valid JSON: {error}", code="invalid_json")
    field = str(error).rpartition("`$.")[2].rstrip("`") if "`$." in str(error) else None
    return ApiError(400, f"{field or 'body'}: {error}", param=field, code="invalid_value")


def unsupported_feature(feature: str) -> ApiError:
    """A 400 for a feature that the model lacks."""
    return ApiError(400, f"This model does not support {feature}.", param="model", code="unsupported_feature")
