"""What a request takes from replica to replica: each attempt, its delivered tokens and its retry budget.

The request may have caused the death of an engine that ran it. The retry budget allows the loss of two
engines that failed by themselves, or of four engines that were killed, or of one that failed and two that
were killed.
"""

import json
import re
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from serve_app.api.body_memory import BodyShare
from serve_app.api.errors import ApiError
from serve_app.api.trace import Stage, Trace
from serve_app.ingress.engine_channel import NeverBegunError, RelayedStream
from serve_app.ingress.replica import Replica, Reservation
from serve_app.ingress.replica_set import ReplicaSet
from serve_app.wire import spans as names
from serve_app.wire.data_plane import BEAT_S, ENGINE_DEAD, ENGINE_KILLED, Continuation, Piece
from serve_app.wire.spans import Value

MOST_BODY_BYTES = 1 << 20
MOST_TOKENS = 64 << 10
"""A stream with a larger body or more tokens is not continued. A conversation of 200,000 tokens fits."""
_RESERVED_TOKENS = 1024
"""Memory is reserved in steps of so many tokens."""
_TOKEN_BYTES = 4
_BEGINS_OUTPUT = 1 << 31
"""The bit of a kept token that is the first token of one of vLLM's outputs. No id is as large."""
_CREATED = re.compile(rb'"created(?:_at)?":(\d+)')
_LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_BUDGET = 4
_FAILED, _KILLED = 2, 1
_HARMLESS_TOKENS = 16


@dataclass(slots=True)
class Attempt:
    """A request on one replica."""

    reservation: Reservation
    continues: bool = False
    """Whether other engines began the answer. Their tokens are prompt to this engine."""
    stream: RelayedStream | None = None
    sent_at: float = 0.0
    stage: Stage = field(default_factory=Stage)
    outcome: str = "abandoned"
    error: str = ""
    delivered_before: int = 0
    """Delivered tokens that other engines generated."""
    spent_before: int = 0
    """The part of the retry budget that was spent before this replica answered."""
    counted: bool = False
    """Whether the engine has told how many tokens the prompt has."""

    def begin(self, trace: Trace) -> None:
        """Note that the call is sent. The span of this attempt is the parent of the engine's span."""
        self.sent_at = time.perf_counter()
        self.stage = trace.begin(names.ATTEMPT, _about(self.reservation.replica))


@contextmanager
def attempt_at(replicas: ReplicaSet, reservation: Reservation) -> Iterator[Attempt]:
    """Hold a reservation for an attempt. Its end ends the call, and gives the reservation back."""
    attempt = Attempt(reservation)
    try:
        yield attempt
    finally:
        attempt.stage.end(attempt.outcome, attempt.error)
        if attempt.stream is not None:
            attempt.stream.close()
        replicas.release(reservation)


def note_pick(
    trace: Trace, since: float, reservation: Reservation, expected_cached: int | None, *, retry: bool
) -> None:
    """Note the pick of a replica, and why it was picked. `since` is when it was asked for."""
    replica = reservation.replica
    if retry:
        reason = "retry"
    elif expected_cached:
        reason = "cached prefix"
    else:
        reason = "least delay" if reservation.group >= 0 else "least load"
    attributes = _about(replica) | {
        names.REASON: reason,
        names.IN_FLIGHT: replica.in_flight,
        names.PENDING_TOKENS: replica.pending_prompt_tokens,
    }
    if expected_cached is not None:
        attributes[names.EXPECTED_CACHED] = expected_cached
    trace.begin(names.PICK, attributes, since=since).end()


def _about(replica: Replica) -> dict[str, Value]:
    about: dict[str, Value] = {names.REPLICA: replica.replica_id}
    return about | {names.VARIANT: replica.variant} if replica.variant else about


def note_continuation(trace: Trace, since: float, moves: int, delivered_tokens: int) -> None:
    """Note that another replica has continued a stream that stopped at `since`."""
    trace.begin(
        names.CONTINUATION, {names.MOVES: moves, names.DELIVERED: delivered_tokens}, since=since
    ).end()


@dataclass(slots=True)
class Delivered:
    """The delivered tokens of one stream: tokens whose events were sent to the client."""

    model_identity: str
    """The model that generates the tokens."""
    share: BodyShare | None
    """Counts the bytes kept of the request's body and the tokens; None if no bound applies."""
    count: int = field(default=0, init=False)
    """The number of delivered tokens, over all sequences."""
    _reserved: int = field(default=0, init=False)
    _tokens: "list[array[int]]" = field(default_factory=list, init=False)
    """By sequence: the ids, with `_BEGINS_OUTPUT` at the first one of each output."""
    _created: int | None = field(default=None, init=False)

    def keep(self, body: bytes) -> bool:
        """Reserve memory for the body, which may be sent again. Returns whether it fits the bounds."""
        return len(body) <= MOST_BODY_BYTES and self._reserve(len(body))

    def note(self, piece: Piece) -> bool:
        """Record a piece that was sent to the client. Returns whether the stream fits the bounds."""
        if self._created is None and piece.data:
            found = _CREATED.search(piece.data)
            self._created = int(found[1]) if found else 0
        for sequence, ids in piece.tokens:
            while len(self._tokens) <= sequence:
                self._tokens.append(array("I"))
            if ids:
                self._tokens[sequence].extend((ids[0] | _BEGINS_OUTPUT, *ids[1:]))
            self.count += len(ids)
        if self.count <= self._reserved:
            return self.count <= MOST_TOKENS
        more = -(-(self.count - self._reserved) // _RESERVED_TOKENS) * _RESERVED_TOKENS
        self._reserved += more
        return self.count <= MOST_TOKENS and self._reserve(more * _TOKEN_BYTES)

    def continuation(self, ttft_s: float, moves: int) -> Continuation | None:
        """Return the record for the next engine; None if the client has got nothing yet."""
        if self._created is None:
            return None
        tokens = [[kept & ~_BEGINS_OUTPUT for kept in ids] for ids in self._tokens] or [[]]
        sizes = [_output_sizes(ids) for ids in self._tokens]
        return Continuation(tokens, self._created, ttft_s, moves, self.model_identity, sizes)

    def _reserve(self, size: int) -> bool:
        try:
            if self.share is not None:
                self.share.grow(size)
        except ApiError:  # no memory: the stream goes on, and cannot be continued elsewhere
            return False
        return True


def _output_sizes(kept: Sequence[int]) -> list[int]:
    begins = [index for index, token in enumerate(kept) if token & _BEGINS_OUTPUT]
    return [end - begin for begin, end in pairwise([*begins, len(kept)])]


def longest_answer(body: bytes) -> int:
    """Return the bound on tokens that `body` asks for; 0 if it has none, or is not JSON."""
    try:
        given = json.loads(body)
        return max(int(given.get(name) or 0) for name in _LENGTHS)
    except (ArithmeticError, ValueError, TypeError, AttributeError):  # a form, or a released body
        return 0


class EngineDiedError(ConnectionError):
    """The engine core ended with the request: by itself, or because it was killed."""


class EngineFailedError(EngineDiedError):
    """The engine died by itself with the request."""


def raise_if_lost(lost: str) -> None:
    """Raise the ConnectionError of one of the data plane's `LOSSES`; do nothing for ""."""
    if lost == ENGINE_DEAD:
        raise NeverBegunError("the replica's engine core was dead already")
    if lost == ENGINE_KILLED:
        raise EngineDiedError("the replica's engine core was killed")
    if lost:
        raise EngineFailedError("the replica's engine core died")


@dataclass(slots=True)
class RetryBudget:
    """The part of one request's budget that is spent."""

    spent: int = 0
    answered: bool = False
    """Whether any engine has begun to answer."""

    @property
    def is_spent(self) -> bool:
        """Whether the request may be sent to no other engine."""
        return self.spent >= _BUDGET

    def charge(self, error: ConnectionError, still_s: float, there_s: float) -> bool:
        """Charge the loss of a replica. Returns whether its engine counts as failed by itself.

        The cost is 0 if the replica was dead or stood still before the request came, and low if that is not
        sure. It is also low if the process was killed or cut off: clusters lose nodes in a row, and a request
        rarely ends a process this way. But until the first answer, the request may have ended each process
        that read it, so the cost is high.

        Args:
            still_s: The least time for which the replica stood still; 0 if it did not.
            there_s: The time since the request was sent there.
        """
        if isinstance(error, NeverBegunError):
            cost = 0
        elif still_s:
            cost = 0 if there_s < still_s else _FAILED if there_s >= still_s + BEAT_S else _KILLED
        else:
            cost = _FAILED if isinstance(error, EngineFailedError) or not self.answered else _KILLED
        self.spent += cost
        return cost >= _FAILED

    def refund(self, spent_before: int, tokens: int) -> None:
        """Give back `spent_before`, spent before a replica, if that replica produced enough `tokens`.

        The tokens show that the request did not cause the earlier losses.
        """
        if tokens >= _HARMLESS_TOKENS:
            self.spent -= spent_before
