"""Read a request's JSON body within bounds of size, time, memory and structure.

Pydantic holds the GIL while it validates. The cost depends on the number of values: up to 45 µs for each, and
9 s for a megabyte of `"input": [[1], [1], …]`. So values are counted before. A long text is one value, and a
valid token id costs 0.1 µs.
"""

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from pydantic import Field, TypeAdapter, ValidationError
from starlette.requests import Request

from serve_app.api.content import Content
from serve_app.api.errors import NOT_JSON, ApiError, not_an_object
from serve_app.api.prompt_prefix import PromptFields

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
_UNREAD = "other requests that are being read"
KEPT = "streams that another replica can go on with"
BACKGROUND = "requests of the lane background"

T = TypeVar("T")


class BodyMemory:
    """Counts the bytes of bodies until their requests have an answer, and bytes kept to continue streams.

    Together they may take `limit_bytes`. One group of requests may take half, so that the other half stays
    free for other groups. A request belongs to the group of its model and, if keys are required, to the group
    of its API key. Without a key, it belongs to the group of unread requests until its model is known. The
    memory kept of streams is also a group. So are requests of the lane `background`, which may take a
    quarter: they wait for hours, and must leave room for other requests of their model. Use it in one event
    loop.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.by_group: Counter[str] = Counter()


class BodyShare:
    """The bytes of one request's body, or the bytes kept of its stream. Call `release` in the end.

    Args:
        group: The request's API key if keys are required, or `KEPT`.
    """

    def __init__(self, memory: BodyMemory, group: str | None) -> None:
        self._memory = memory
        self._groups = [_UNREAD if group is None else group]
        self._bytes = 0

    def expect(self, length: int) -> None:
        """Refuse a body of `length` bytes that does not fit now, before it is read.

        Nothing is reserved: a client that declares a large body and sends nothing must not block others.

        Raises:
            ApiError: 429, or 413 if it can never fit.
        """
        self._check(self._groups, length, length)

    def grow(self, more: int) -> None:
        """Take `more` bytes. If they do not fit, take none and raise ApiError as `expect`."""
        self._check(self._groups, more, more)
        self._count(self._groups, more)
        self._memory.used_bytes += more
        self._bytes += more

    def belongs_to(self, model: str, *, background: bool = False, lowered: bool = False) -> None:
        """Count a body that is read for its model and lane. Raises ApiError as `expect`.

        `lowered` means that the lane is `background` only for now, because the key is above a rate.
        """
        groups = [f"model {model!r}", *([BACKGROUND] if background else [])]
        self._check(groups, self._bytes, 0, lowered=lowered)
        if _UNREAD in self._groups:
            self._count([_UNREAD], -self._bytes)
            self._groups.remove(_UNREAD)
        self._count(groups, self._bytes)
        self._groups += groups

    def release(self) -> None:
        """Give all bytes back. A second call does nothing."""
        self._count(self._groups, -self._bytes)
        self._memory.used_bytes -= self._bytes
        self._bytes = 0

    def __del__(self) -> None:
        # A response that is dropped before it is sent must give its bytes back.
        self.release()

    def _count(self, groups: list[str], more: int) -> None:
        by_group = self._memory.by_group
        for group in groups:
            by_group[group] += more
            if not by_group[group]:
                del by_group[group]

    def _check(self, groups: list[str], more: int, uncounted: int, *, lowered: bool = False) -> None:
        """Raise ApiError 429 if `more` bytes exceed a group's share, or `uncounted` of them the memory.

        It is 413 if even an empty memory could not take the body: no client should send it again.
        """
        memory, whole = self._memory, self._bytes + uncounted
        full = memory.used_bytes + uncounted > memory.limit_bytes
        for group in groups:
            of_group = memory.by_group[group]
            share, part = (4, "a quarter") if group == BACKGROUND else (2, "half")
            if share * whole > memory.limit_bytes and not lowered:
                bound = f"{memory.limit_bytes // share}, {part} of http.max_body_memory_bytes"
                message = f"The body has {whole} bytes; {group} may have {bound} = {memory.limit_bytes}."
                raise ApiError(413, message, code="body_too_large", headers={"Connection": "close"})
            if full or share * (of_group + more) > memory.limit_bytes:
                raise ApiError(
                    429,
                    f"This ingress replica has {memory.used_bytes} bytes of bodies in memory, "
                    f"{of_group} of them of {group}, which may have {part} of max_body_memory_bytes = "
                    f"{memory.limit_bytes}; this body would add {more}.",
                    code="body_memory_full",
                    # The unread rest of the body must not be read as the next request.
                    headers={"Retry-After": "5", "Connection": "close"},
                )


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

    def answer_bound(self, operation: str) -> int | None:
        """Return the most tokens of all choices; None if the body does not say, or not validly."""
        given = (_read(_count, getattr(self, name)) for name in _BOUNDS.get(operation, ("max_tokens",)))
        most: int | None = next((found for found in given if found is not None), None)
        return None if most is None else most * (_read(_count, self.n) or 1)


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
    content = Content(request, max_bytes, body_too_large(max_bytes), timeout_s)
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
        body: The whole body.
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
    """Fields that may hold token ids. Others are skipped, because building 400,000 values took 0.3 s."""

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
