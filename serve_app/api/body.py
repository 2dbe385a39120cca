"""Reading a request's JSON body, within bounds."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request

from serve_app.api.errors import ApiError


class Peek(msgspec.Struct):
    """The only fields of a body the ingress needs; the engine replica reads the rest."""

    model: str | None = None
    stream: Any = None
    """Whatever stands there: whether it is valid is for the engine replica to say."""

    @property
    def streams(self) -> bool:
        """Whether the client asked for a stream, and may be sent comments while it waits."""
        return self.stream is True


_peek = msgspec.json.Decoder(Peek)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body.

    Raises:
        ApiError: 413 once it is larger than `max_bytes`, before it has all been read.
    """
    length = request.headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and int(length) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > max_bytes:
                raise _too_large(max_bytes)
    except ClientDisconnect:
        raise ApiError(400, "The client left before its request was complete.") from None
    return bytes(body)


def peek(body: bytes) -> Peek:
    """What the ingress needs of a body. Raises ApiError 400 when it is not a JSON object."""
    try:
        return _peek.decode(body)
    except msgspec.ValidationError as error:
        field = str(error).rpartition("`$.")[2].rstrip("`") if "`$." in str(error) else None
        raise ApiError(400, f"{field or 'body'}: {error}", param=field, code="invalid_value") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"The body is not valid JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise ApiError(400, "The body is nested too deeply.", code="invalid_json") from None


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413, f"The body is larger than the {max_bytes} bytes this server accepts.", code="body_too_large"
    )
