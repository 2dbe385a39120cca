"""Reading a request's JSON body, within bounds."""

import asyncio
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request

from serve_app.api import body_values
from serve_app.api.body_memory import BodyShare
from serve_app.api.errors import ApiError, body_too_large, body_too_slow, not_an_object
from serve_app.api.prompt_prefix import PromptFields

SLOWEST_BYTES_PER_S = 16_384
"""A body may take a second longer for so many bytes received: 8 MiB at 131 kbit/s are still read."""


class Peek(PromptFields):
    """The only fields of a body the ingress needs; the engine replica reads the rest."""

    model: str | None = None
    stream: Any = None
    """Any JSON value, since the engine replica decides whether it is valid; only `true` asks for a stream."""


_peek = msgspec.json.Decoder(Peek)


async def read_body(request: Request, max_bytes: int, timeout_s: float, share: BodyShare) -> bytes:
    """The whole body.

    Args:
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
            raise body_too_large(max_bytes)
        share.expect(int(length))
    body = bytearray()
    due = asyncio.get_running_loop().time() + timeout_s
    try:
        async with asyncio.timeout_at(due) as limit:
            async for chunk in request.stream():
                if len(body) + len(chunk) > max_bytes:
                    raise body_too_large(max_bytes)
                share.grow(len(chunk))
                body += chunk
                limit.reschedule(due + len(body) / SLOWEST_BYTES_PER_S)
    except TimeoutError:
        raise body_too_slow(timeout_s, SLOWEST_BYTES_PER_S, len(body)) from None
    except ClientDisconnect:
        raise ApiError(400, "The client left before its request was complete.") from None
    return bytes(body)


async def check_structure(body: bytes) -> None:
    """Refuse a body of more values than can be validated without holding up other requests.

    A body that is not a JSON object passes here, and is refused where it is parsed.

    Raises:
        ApiError: 400, which names the count and the bound.
    """
    # Text may contain brackets and commas, so this is an upper bound; nearly every body is below it.
    containers, values = body.count(b"{") + body.count(b"["), body.count(b",") + 1
    if containers > body_values.MAX_CONTAINERS or values > body_values.MAX_VALUES:
        await body_values.check(body)


def peek(body: bytes) -> Peek:
    """Return what the ingress needs to know of a body. Raises ApiError 400 when it is not a JSON object."""
    try:
        return _peek.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_an_object(error) from None
