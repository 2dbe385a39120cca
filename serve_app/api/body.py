"""A request's JSON body: read within bounds of size, time, memory and structure.

Pydantic holds the GIL while it validates, and the cost of a body is not its bytes but its values: up to 45 µs
for each, 9 s for a megabyte of `"input": [[1], [1], …]`. So values are counted before. A long text is one
value, and a valid token id costs 0.1 µs.
"""

import asyncio
from collections import Counter
from typing import Any

import msgspec
import numpy as np
from starlette.requests import ClientDisconnect, Request

from serve_app.api.errors import ApiError, body_memory_full, body_too_large, body_too_slow, not_an_object
from serve_app.api.prompt_prefix import PromptFields

SLOWEST_BYTES_PER_S = 16_384
"""A body may take a second longer for so many bytes received: 8 MiB at 131 kbit/s are still read."""
MAX_CONTAINERS = 4096
"""Objects and lists of a body."""
MAX_VALUES = 16_384
"""Members of objects and lists, not counting token ids."""
MAX_TOKEN_IDS = 1 << 18
"""Token ids of a body, in `prompt`, `tokens` or `input`."""
_IN_THREAD_BYTES = 1 << 16
_NONE = msgspec.Raw(b"null")
_UNREAD = "other requests that are being read"
KEPT = "streams that another replica can go on with"


class BodyMemory:
    """Counts the bytes of bodies until their requests have an answer, and those kept to continue streams.

    All of them may have `limit_bytes`, and one group of requests half of that, so that the other half is left
    to the others. A request belongs to the group of its API key, where keys are needed, and to the group of
    its model. Until its model has been read, a request without a key belongs to the group of those that
    are being read. What is kept of streams is a group, too. For one event loop.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.by_group: Counter[str] = Counter()


class BodyShare:
    """The bytes of one request's body, or of what is kept of its stream. `release` them in the end.

    Args:
        group: The request's API key if keys are needed, or `KEPT`.
    """

    def __init__(self, memory: BodyMemory, group: str | None) -> None:
        self._memory = memory
        self._groups = [_UNREAD if group is None else group]
        self._bytes = 0

    def expect(self, length: int) -> None:
        """Refuse a body of `length` bytes that does not fit now, before any of it is read.

        Nothing is reserved: a client that declares a large body and sends none must not keep others out.

        Raises:
            ApiError: 429.
        """
        self._check(self._groups, length, length)

    def grow(self, more: int) -> None:
        """Take `more` bytes. Raises ApiError 429 where they do not fit, and takes none."""
        self._check(self._groups, more, more)
        self._count(self._groups, more)
        self._memory.used_bytes += more
        self._bytes += more

    def belongs_to(self, model: str) -> None:
        """Count the body, now read, for `model`. Raises ApiError 429 if its share is used up."""
        group = f"model {model!r}"
        self._check([group], self._bytes, 0)
        if _UNREAD in self._groups:
            self._count([_UNREAD], -self._bytes)
            self._groups.remove(_UNREAD)
        self._count([group], self._bytes)
        self._groups.append(group)

    def release(self) -> None:
        """Give everything back. A second call does nothing."""
        self._count(self._groups, -self._bytes)
        self._memory.used_bytes -= self._bytes
        self._bytes = 0

    def __del__(self) -> None:
        # A response that is dropped before it is sent must not take its bytes along for ever.
        self.release()

    def _count(self, groups: list[str], more: int) -> None:
        by_group = self._memory.by_group
        for group in groups:
            by_group[group] += more
            if not by_group[group]:
                del by_group[group]

    def _check(self, groups: list[str], more: int, uncounted: int) -> None:
        """Raise ApiError 429 if `more` bytes exceed a group's share, or `uncounted` of them the memory."""
        memory = self._memory
        full = memory.used_bytes + uncounted > memory.limit_bytes
        for group in groups:
            of_group = memory.by_group[group]
            if full or 2 * (of_group + more) > memory.limit_bytes:
                raise body_memory_full(memory.limit_bytes, memory.used_bytes, group, of_group, more)


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
    if containers > MAX_CONTAINERS or values > MAX_VALUES:
        await _count_and_check(body)


def peek(body: bytes) -> Peek:
    """Return what the ingress needs to know of a body. Raises ApiError 400 when it is not a JSON object."""
    try:
        return _peek.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_an_object(error) from None


class _TokenFields(msgspec.Struct):
    """Fields that may hold token ids. All others are skipped: building 400,000 values took 0.3 s."""

    prompt: msgspec.Raw = _NONE
    tokens: msgspec.Raw = _NONE
    input: msgspec.Raw = _NONE


_fields = msgspec.json.Decoder(_TokenFields)
_ids = msgspec.json.Decoder(list[int] | None)
_batches = msgspec.json.Decoder(list[list[int]])


async def _count_and_check(body: bytes) -> None:
    """Count the values of `body`, of a long one in a thread. Raises ApiError 400 if they are too many."""
    if len(body) > _IN_THREAD_BYTES:
        await asyncio.to_thread(_check, body)
    else:
        _check(body)


def count_values(text: bytes | memoryview) -> tuple[int, int]:
    """Objects and lists of a JSON text, and values separated by commas; neither within strings."""
    plain = np.frombuffer(bytes(text).replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
    outside = plain[~np.logical_xor.accumulate(plain == ord('"'))]
    containers = np.count_nonzero((outside == ord("{")) | (outside == ord("[")))
    return int(containers), int(np.count_nonzero(outside == ord(","))) + 1


def _check(body: bytes) -> None:
    containers, values = count_values(body)
    if containers > MAX_CONTAINERS:
        raise _too_many("body", "objects and lists", containers, MAX_CONTAINERS)
    if values <= MAX_VALUES:
        return
    for name, ids in _token_ids(body):
        if ids > MAX_TOKEN_IDS:
            raise _too_many(name, "token ids", ids, MAX_TOKEN_IDS)
        values -= ids
    if values > MAX_VALUES:
        raise _too_many("body", "values", values, MAX_VALUES)


def _token_ids(body: bytes) -> list[tuple[str, int]]:
    """Fields of a body that hold token ids and nothing else, each with their number."""
    found: list[tuple[str, int]] = []
    try:
        fields = _fields.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return found
    for name in fields.__struct_fields__:
        value = getattr(fields, name)
        for decoder in (_ids, _batches):
            try:
                decoder.decode(value)
            except (msgspec.DecodeError, RecursionError):
                continue
            found.append((name, count_values(value)[1]))
            break
    return found


def _too_many(param: str, what: str, count: int, bound: int) -> ApiError:
    named = None if param == "body" else param
    return ApiError(
        400, f"{param}: {count} {what}; at most {bound} are accepted", param=named, code="invalid_value"
    )
