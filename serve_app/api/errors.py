"""Errors in the OpenAI API's shape: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
DONE = b"data: [DONE]\n\n"
"""The frame every stream ends with."""
ERROR_EVENT = b"event: error\n"
"""How the frame of an error within a stream begins."""


class ApiError(Exception):
    """A failure with its HTTP status, told to the client in OpenAI's shape.

    Args:
        status: HTTP status code.
        message: For a person: what was wrong, with the value and the bound.
        param: The request field at fault, if one is.
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

    @property
    def type(self) -> str:
        """OpenAI's type of error, which tells whose fault it is."""
        return INVALID_REQUEST if self.status < 500 else SERVER_ERROR

    def body(self) -> bytes:
        """The JSON document of this error."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def frame(self) -> bytes:
        """The same as an SSE `error` event, for a stream whose status has already been sent."""
        return ERROR_EVENT + b"data: " + self.body() + b"\n\n"

    def last_frames(self) -> bytes:
        """The error event and the end of the stream."""
        return self.frame() + DONE


def internal_error() -> ApiError:
    """A 500 for a fault of the server's own, before anything was sent. Its cause is logged."""
    return ApiError(500, "The server failed to answer this request.", code="internal_error")


def stream_failed() -> ApiError:
    """The same within a stream, whose status has been sent."""
    return ApiError(500, "The server failed while streaming this answer.", code="stream_failed")
