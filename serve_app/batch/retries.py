"""Which answers of a line are final, and when another attempt follows. Pure."""

from dataclasses import dataclass

import msgspec

from serve_app.wire.batch_lines import LineAnswer

_REFUSED = (429, 503)
"""No replica, no memory or no place in the key's limits. Such a line may come again until the end of the
completion window."""
_LOST = "replicas_lost"
"""The code of a line whose replicas were lost one after another. The line may be the cause."""
_MOST_FAULTS = 3
"""Attempts of one line that end in a fault of the server. Then the fault is the answer."""
_FIRST_S = 0.5
_LONGEST_S = 60.0
LONGEST_LEASE_S = 3600.0
"""A longer lease is of a clock that was ahead, and does not count."""


class _Error(msgspec.Struct):
    code: str | None = None


class _Body(msgspec.Struct):
    error: _Error | None = None


_body = msgspec.json.Decoder(_Body)


@dataclass(frozen=True, slots=True)
class Retry:
    """Another attempt."""

    after_s: float
    fault: bool = False
    """Whether the attempt counts as a fault of the server, of which a line has a few."""


def retry_of(answer: LineAnswer, attempts: int, faults: int) -> Retry | None:
    """Return when to send a line again; None if `answer` is final.

    Args:
        answer: The answer to the last attempt.
        attempts: The attempts so far, the last one included.
        faults: The earlier attempts that ended in a fault of the server.
    """
    wait_s = min(max(backoff_s(attempts), answer.retry_after_s), LONGEST_LEASE_S)
    if answer.status in _REFUSED and _code(answer.body) != _LOST:
        return Retry(wait_s)
    if answer.status >= 500 and faults + 1 < _MOST_FAULTS:
        return Retry(wait_s, fault=True)
    return None


def backoff_s(attempts: int) -> float:
    """Return the wait before the next attempt: it doubles, from half a second to a minute."""
    return min(_FIRST_S * 2.0 ** min(max(attempts - 1, 0), 10), _LONGEST_S)


def _code(body: bytes) -> str | None:
    try:
        error = _body.decode(body).error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return None if error is None else error.code
