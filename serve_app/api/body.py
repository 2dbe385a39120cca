"""Reading a request's JSON body, within bounds."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request

from serve_app.api.body_memory import BodyShare
from serve_app.api.errors import ApiError


class Peek(msgspec.Struct):
    """The only fields of a body the ingress needs; the engine replica reads the rest."""

    model: str | None = None
    stream: Any = None
    """Any JSON value: the engine replica decides whether it is valid."""

    @property
    def wants_stream(self) -> bool:
        """Whether the client asked for a stream, and may be sent comments while it waits."""
        return self.stream is True


_peek = msgspec.json.Decoder(Peek)

SLOWEST_BYTES_PER_S = 16_384
"""A body may take a second longer for so many bytes received: 8 MiB at 131 kbit/s are still read."""


async def read_body(request: Request, max_bytes: int, timeout_s: float, share: BodyShare) -> bytes:
    """The whole body.

    Args:
        request: The request to read.
        max_bytes: Bound on the body's size.
        timeout_s: Seconds it may take, and one more for each `SLOWEST_BYTES_PER_S` bytes received: a client
            that trickles a body would keep its connection and its memory for as long as it likes.
        share: Takes its bytes as they come; the caller releases them.

    Raises:
        ApiError: 413 once it is larger than `max_bytes`, and 429 where the memory for bodies does not hold
            it: before it has all been read, and before any of it where its length is declared; 408 once it
            has taken too long.
    """
    length = request.headers.get("content-length", "0")
    if length.isascii() and length.isdigit():
        if int(length) > max_bytes:
            raise _too_large(max_bytes)
        share.expect(int(length))
    body = bytearray()
    due = asyncio.get_running_loop().time() + timeout_s
    try:
        async with asyncio.timeout_at(due) as limit:
            async for chunk in request.stream():
                if len(body) + len(chunk) > max_bytes:
                    raise _too_large(max_bytes)
                share.grow(len(chunk))
                body += chunk
                limit.reschedule(due + len(body) / SLOWEST_BYTES_PER_S)
    except TimeoutError:
        raise _too_slow(timeout_s, len(body)) from None
    except ClientDisconnect:
        raise ApiError(400, "The client left before its request was complete.") from None
    return bytes(body)


def peek(body: bytes) -> Peek:
    """Return what the ingress needs to know of a body. Raises ApiError 400 when it is not a JSON object."""
    try:
        return _peek.decode(body)
    except msgspec.ValidationError as error:
        field = str(error).rpartition("`$.")[2].rstrip("`") if "`$." in str(error) else None
        raise ApiError(400, f"{field or 'body'}: {error}", param=field, code="invalid_value") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"The body is not valid JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise ApiError(400, "The body is nested too deeply.", code="invalid_json") from None


def _too_slow(timeout_s: float, received: int) -> ApiError:
    message = (
        f"The body is incomplete: {received} bytes arrived in time. This server waits {timeout_s:g} s for a "
        f"body, and one second more for each {SLOWEST_BYTES_PER_S} bytes received."
    )
    # The rest of the body may still come: it must not be taken for the next request.
    return ApiError(408, message, code="body_timeout", headers={"Connection": "close"})


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413, f"The body is larger than the {max_bytes} bytes this server accepts.", code="body_too_large"
    )
