"""Read a request's JSON body within bounds of size, time, memory and structure.

Pydantic holds the GIL while it validates. The cost depends on the number of values: up to 45 µs for each, and
9 s for a megabyte of `"input": [[1], [1], …]`. So values are counted before. A long text is one value, and a
valid token id costs 0.1 µs.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from pydantic import Field, TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect, Request

from serve_app.api.body_memory import BodyShare
from serve_app.api.errors import NOT_JSON, ApiError, not_an_object
from serve_app.api.prompt_prefix import PromptFields, holds_prompts
from serve_app.settings.settings_error import shown

SLOWEST_BYTES_PER_S = 16_384
"""Each so many bytes received give the body one more second. So 8 MiB at 131 kbit/s are still read."""
_PIECE_BYTES = 1 << 16
"""Unpacked at once, in 0.2 ms, for which the event loop stands still."""
_ZLIB = zlib.MAX_WBITS
_WINDOW_BITS = {"": 0, "gzip": 16 + _ZLIB, "x-gzip": 16 + _ZLIB, "deflate": _ZLIB}
"""zlib's `wbits` of the content codings that are decoded (RFC 9110, 8.4.1)."""


class Content:
    """The content of one request.

    Args:
        request: The request. Its body is not read yet.
        max_bytes: The most bytes of the body, with its coding and without it.
        too_large: Returns the error of a larger body. A declared length is checked before the body is read.
        timeout_s: Seconds that the body may take. Each `SLOWEST_BYTES_PER_S` bytes received give one second
            more. The bound keeps slow clients from occupying a connection and memory for ever.

    Raises:
        ApiError: 415 for a content coding that is not decoded, `too_large`.
    """

    def __init__(
        self, request: Request, max_bytes: int, too_large: Callable[[], ApiError], timeout_s: float
    ) -> None:
        self._request, self._max_bytes, self._too_large = request, max_bytes, too_large
        self._timeout_s = timeout_s
        self._received = 0
        """The bytes of the body so far, as they came."""
        given = ",".join(request.headers.getlist("content-encoding"))
        codings = [
            name for each in given.split(",") if (name := each.strip().lower()) not in ("", "identity")
        ]
        self._coding = ",".join(codings)
        if self._coding not in _WINDOW_BITS:
            raise ApiError(
                415,
                f"Content-Encoding = {shown(given)}: must be gzip or deflate, given once.",
                code="unsupported_encoding",
                headers={"Accept-Encoding": "gzip, deflate"},
            )
        self._unpacker: Any = None
        length = request.headers.get("content-length", "")
        known = not codings and length.isascii() and length.isdigit() and len(length) < 16
        self.length = int(length) if known else None
        """The declared length; None if none is declared, or if the content has a coding."""
        if known and int(length) > max_bytes:
            raise too_large()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the content.

        Raises:
            ApiError: 400 if the client leaves or the coding is malformed, 408 if it is late, `too_large`.
        """
        due = asyncio.get_running_loop().time() + self._timeout_s
        stream, size = self._request.stream(), 0
        while (data := await self._next(stream, due)) is not None:
            self._received += len(data)
            if self._received > self._max_bytes:
                raise self._too_large()
            for piece in self._unpack(data) if self._coding else (data,):
                size += len(piece)
                if size > self._max_bytes:
                    raise self._too_large()
                yield piece
                if self._coding:
                    await asyncio.sleep(0)
        if self._coding and not (self._unpacker and self._unpacker.eof):
            raise self._malformed("it ends too early")

    async def _next(self, stream: AsyncIterator[bytes], due: float) -> bytes | None:
        try:
            async with asyncio.timeout_at(due + self._received / SLOWEST_BYTES_PER_S):
                return await anext(stream, None)
        except TimeoutError:
            raise ApiError(
                408,
                f"The body is incomplete: {self._received} bytes arrived in time. This server waits "
                f"{self._timeout_s:g} s for a body, and one second more for each {SLOWEST_BYTES_PER_S} bytes "
                "received.",
                code="body_timeout",
                headers={"Connection": "close"},  # the rest of the body is not the next request
            ) from None
        except ClientDisconnect:
            raise ApiError(400, "The client left before its request was complete.") from None

    def _unpack(self, data: bytes) -> Iterator[bytes]:
        piece = b""
        while data or (len(piece) == _PIECE_BYTES and not self._unpacker.eof):
            if self._unpacker is None or self._unpacker.eof:  # a gzip file may have several members
                # Many clients leave out zlib's header of deflate, whose first byte ends in 8.
                bare = self._coding == "deflate" and data[0] & 15 != 8
                self._unpacker = zlib.decompressobj(-_ZLIB if bare else _WINDOW_BITS[self._coding])
            try:
                piece = self._unpacker.decompress(data, _PIECE_BYTES)
            except zlib.error as error:
                raise self._malformed(str(error)) from None
            data = self._unpacker.unconsumed_tail or self._unpacker.unused_data
            if piece:
                yield piece

    def _malformed(self, reason: str) -> ApiError:
        return ApiError(400, f"The body is not {self._coding}: {reason}.", code="invalid_encoding")


MAX_CONTAINERS = 4096
"""The most objects and lists of a body."""
MESSAGES_CONTAINERS = 8192
"""The same for Messages, of which each takes 30 µs at most. A tool's call and its result have seven."""
MAX_VALUES = 16_384
"""The most members of a body's objects and lists, without token ids."""
MAX_TOKEN_IDS = 1 << 18
"""The most token ids of a body, in `prompt`, `tokens` or `input`."""
_IN_THREAD_BYTES = 1 << 16
NULL = msgspec.Raw(b"null")

T = TypeVar("T")


class Peek(PromptFields):
    """The only fields of a body the ingress needs; the engine replica reads the rest."""

    model: str | None = None
    stream: msgspec.Raw = NULL
    max_tokens: msgspec.Raw = NULL
    max_completion_tokens: msgspec.Raw = NULL
    max_output_tokens: msgspec.Raw = NULL
    n: msgspec.Raw = NULL

    @property
    def wants_stream(self) -> bool:
        """Whether the body asks for a stream. False for a value that vLLM's models refuse."""
        return bool(_read(_flag, self.stream))

    def answer_bound(self, operation: str, longest: int | None = None) -> int | None:
        """Return the most tokens of all choices for all prompts.

        `longest` counts for each choice if the body does not say its bound, or not validly.
        """
        given = (_read(_count, getattr(self, name)) for name in _BOUNDS.get(operation, ("max_tokens",)))
        most: int | None = next((found for found in given if found is not None), longest)
        prompts = _listed(self.prompt) if holds_prompts(bytes(self.prompt)) else ()
        return None if most is None else most * (_read(_count, self.n) or 1) * (len(prompts) or 1)


_BOUNDS = {
    "chat_completions": ("max_completion_tokens", "max_tokens"),
    "responses": ("max_output_tokens",),
    "transcriptions": ("max_completion_tokens",),
    "translations": ("max_completion_tokens",),
}
"""The fields that bound an answer, by operation. vLLM ignores the others."""
# vLLM's models are pydantic's, which read the text "yes" as true and "7" as 7.
_flag = TypeAdapter(bool | None)
_count = TypeAdapter(Annotated[int, Field(ge=0, lt=10**9)] | None)


def _read(field: TypeAdapter[Any], value: msgspec.Raw) -> Any:
    """Return the value as vLLM's models read it; None if they refuse it, or if it is out of bounds."""
    if (text := bytes(value)) != b"null":
        with suppress(ValidationError):
            return field.validate_json(text)
    return None


_peek = msgspec.json.Decoder(Peek)


def body_too_large(max_bytes: int) -> ApiError:
    """A 413 for a body of more than `max_bytes`."""
    return ApiError(
        413, f"The body is larger than the {max_bytes} bytes this server accepts.", code="body_too_large"
    )


async def read_body(request: Request, max_bytes: int, timeout_s: float, share: BodyShare) -> bytes:
    """The whole body, without its content coding.

    Args:
        max_bytes, timeout_s: See `Content`.
        share: Takes the bytes as they come. The caller releases them.

    Raises:
        ApiError: 413 if the body is larger than `max_bytes`, 429 if the memory for bodies does not hold it,
            others as `Content`.
    """
    content = Content(request, max_bytes, partial(body_too_large, max_bytes), timeout_s)
    share.expect(content.length or 0)
    body = bytearray()
    async for chunk in content.chunks():
        share.grow(len(chunk))
        body += chunk
    return bytes(body)


async def check_structure(body: bytes, most: int = MAX_CONTAINERS) -> None:
    """Refuse a body with so many values that its validation would delay other requests.

    A body that is not a JSON object passes here. The parser refuses it later.

    Args:
        most: The most objects and lists.

    Raises:
        ApiError: 400, which names the count and the bound.
    """
    # Text may contain brackets and commas, so this is an upper bound. Nearly all bodies are below it.
    containers, values = body.count(b"{") + body.count(b"["), body.count(b",") + 1
    if containers > most or values > MAX_VALUES:
        if len(body) > _IN_THREAD_BYTES:
            await asyncio.to_thread(_check, body, most)
        else:
            _check(body, most)


def decode_body(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Return a body that is a JSON object. Raises ApiError 400 if it is not what the decoder expects."""
    try:
        return decoder.decode(body)
    except NOT_JSON as error:
        raise not_an_object(error) from None


def peek(body: bytes) -> Peek:
    """Return the fields of a body that the ingress needs. Raises ApiError 400 if it is not a JSON object."""
    return decode_body(body, _peek)


MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_values = msgspec.json.Decoder(list[msgspec.Raw])
QUERIES = ("query", "queries", "data_1", "text_1")
DOCUMENTS = ("documents", "items", "data_2", "text_2")
"""The fields of bodies of scores and ranks, of which one of each is given."""


def repeated_bytes(body: bytes) -> int:
    """Return how many bytes of a body of scores or ranks an engine reads again.

    A cross-encoder reads the query once with each document. Raises ApiError 400 if it is not a JSON object.
    """
    fields = decode_body(body, MEMBERS)
    queries, documents = (
        next((_listed(fields[name]) for name in names if fields.get(name, NULL) != NULL), [])
        for names in (QUERIES, DOCUMENTS)
    )
    return (len(documents) - 1) * len(queries[0]) if len(queries) == 1 and documents else 0


def _listed(value: msgspec.Raw) -> list[msgspec.Raw]:
    return _values.decode(value) if bytes(value).startswith(b"[") else [value]


class _TokenFields(msgspec.Struct):
    """Fields that may hold token ids. Others are skipped, because building 400,000 values takes 0.3 s."""

    prompt: msgspec.Raw = NULL
    tokens: msgspec.Raw = NULL
    input: msgspec.Raw = NULL


_fields = msgspec.json.Decoder(_TokenFields)
_ids = msgspec.json.Decoder(list[int] | None)
_batches = msgspec.json.Decoder(list[list[int]])


def count_values(text: bytes | memoryview) -> tuple[int, int]:
    """Return the number of a JSON text's objects and lists, and its values separated by commas."""
    plain = np.frombuffer(bytes(text).replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
    outside = plain[~np.logical_xor.accumulate(plain == ord('"'))]
    containers = np.count_nonzero((outside == ord("{")) | (outside == ord("[")))
    return int(containers), int(np.count_nonzero(outside == ord(","))) + 1


def _check(body: bytes, most: int) -> None:
    containers, values = count_values(body)
    if containers > most:
        raise _too_many("body", "objects and lists", containers, most)
    if values <= MAX_VALUES:
        return
    for name, ids in _token_ids(body):
        if ids > MAX_TOKEN_IDS:
            raise _too_many(name, "token ids", ids, MAX_TOKEN_IDS)
        values -= ids
    if values > MAX_VALUES:
        raise _too_many("body", "values", values, MAX_VALUES)


def _token_ids(body: bytes) -> list[tuple[str, int]]:
    """Return the fields of a body that hold only token ids, and the number of ids in each."""
    found: list[tuple[str, int]] = []
    try:
        fields = _fields.decode(body)
    except NOT_JSON:
        return found
    for name in fields.__struct_fields__:
        value = getattr(fields, name)
        for decoder in (_ids, _batches):
            try:
                decoder.decode(value)
            except NOT_JSON:
                continue
            found.append((name, count_values(value)[1]))
            break
    return found


def _too_many(param: str, what: str, count: int, bound: int) -> ApiError:
    named = None if param == "body" else param
    return ApiError(
        400, f"{param}: {count} {what}; at most {bound} are accepted", param=named, code="invalid_value"
    )
