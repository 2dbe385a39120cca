"""How many values a JSON body may hold, counted without building them.

Pydantic holds the GIL while it validates, and what a body costs is not its bytes but its values: up to
45 µs for each, 9 s for a megabyte of `"input": [[1], [1], …]`. A long text is one value, and a valid
token id costs 0.1 µs.
"""

import asyncio

import msgspec
import numpy as np

from serve_app.api.errors import ApiError

MAX_CONTAINERS = 4096
"""Objects and lists of a body."""
MAX_VALUES = 16_384
"""Members of objects and lists, not counting token ids."""
MAX_TOKEN_IDS = 1 << 18
"""Token ids of a body, in `prompt`, `tokens` or `input`."""
_IN_THREAD_BYTES = 1 << 16

_NONE = msgspec.Raw(b"null")


class _TokenFields(msgspec.Struct):
    """Fields that may hold token ids. All others are skipped: building 400,000 values took 0.3 s."""

    prompt: msgspec.Raw = _NONE
    tokens: msgspec.Raw = _NONE
    input: msgspec.Raw = _NONE


_fields = msgspec.json.Decoder(_TokenFields)
_ids = msgspec.json.Decoder(list[int] | None)
_batches = msgspec.json.Decoder(list[list[int]])


async def check(body: bytes) -> None:
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
