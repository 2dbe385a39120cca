"""The notes of a request's stages in the ingress, for its trace."""

from serve_app.api.errors import ApiError
from serve_app.api.request_trace import Stage, Trace
from serve_app.ingress.replica import Reservation
from serve_app.wire import spans as names
from serve_app.wire.spans import Value, cold_start_root


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


def begin_attempt(trace: Trace, reservation: Reservation) -> Stage:
    """Begin an attempt on the replica of `reservation`. Its span is the parent of the engine's span."""
    return trace.begin(names.ATTEMPT, {names.REPLICA: reservation.replica.replica_id})


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
