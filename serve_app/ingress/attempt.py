"""An attempt: a request on one replica, and the stages of the request in its trace."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from serve_app.api.errors import ApiError
from serve_app.api.trace import Stage, Trace
from serve_app.ingress.engine_channel import RelayedStream
from serve_app.ingress.replica import Reservation
from serve_app.ingress.replica_set import ReplicaSet
from serve_app.wire import spans as names
from serve_app.wire.spans import Value, cold_start_root


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
        self.stage = trace.begin(names.ATTEMPT, {names.REPLICA: self.reservation.replica.replica_id})


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
    attributes: dict[str, Value] = {
        names.REPLICA: replica.replica_id,
        names.REASON: reason,
        names.IN_FLIGHT: replica.in_flight,
        names.PENDING_TOKENS: replica.pending_prompt_tokens,
    }
    if expected_cached is not None:
        attributes[names.EXPECTED_CACHED] = expected_cached
    trace.begin(names.PICK, attributes, since=since).end()


def note_continuation(trace: Trace, since: float, moves: int, delivered_tokens: int) -> None:
    """Note that another replica has continued a stream that stopped at `since`."""
    trace.begin(
        names.CONTINUATION, {names.MOVES: moves, names.DELIVERED: delivered_tokens}, since=since
    ).end()


def end_queue(stage: Stage, got: Reservation | BaseException, *, cold: bool = False) -> None:
    """End the stage of a queued request, which got a reservation or an error.

    After a cold start, it links to the trace of the replica's start.
    """
    if isinstance(got, Reservation):
        if cold:
            stage.link(cold_start_root(got.replica.replica_id))
        stage.end("released")
    elif isinstance(got, ApiError):
        stage.end("refused", got.message)
    else:
        stage.end("abandoned")
