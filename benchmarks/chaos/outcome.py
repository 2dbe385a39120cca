"""What became of one stream, from what its client received."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.chaos.observed import Outcome, Stream

PAUSE_S = 1.0
"""A stream that stood still for longer was interrupted, as its reader sees it."""
HUNG_S = 5.0
"""And one that has stood still for so long when it is given up hangs."""


@dataclass(frozen=True, slots=True)
class Received:
    """What a client has of one stream when it is over."""

    opened_s: float
    ended_s: float
    asked_tokens: int
    status: int = 0
    """0: no answer had begun."""
    pieces_s: Sequence[float] = ()
    """When each piece arrived."""
    done: bool = False
    """`[DONE]` came last."""
    error_event: str = ""
    output_tokens: int | None = None
    """As the final usage says."""
    failure: str = ""
    """Of the connection, in words."""
    given_up: bool = False
    """Closed by us, because the event was over."""


def stream(received: Received) -> Stream:
    """The record of one stream."""
    outcome, error = _outcome(received)
    return Stream(
        received.opened_s,
        received.ended_s,
        outcome,
        tokens=received.output_tokens or len(received.pieces_s),
        longest_pause_s=_longest_pause_s(received),
        error=error,
    )


def _outcome(received: Received) -> tuple[Outcome, str]:
    if received.given_up:
        last = received.pieces_s[-1] if received.pieces_s else received.opened_s
        idle_s = received.ended_s - last
        return ("hung", f"nothing for {idle_s:.1f} s") if idle_s > HUNG_S else ("open", "")
    if received.status != 200:
        return "refused", received.failure
    if received.error_event:
        return ("told" if received.done else "cut"), received.error_event
    if not received.done:
        return "cut", received.failure or "the stream ended without [DONE]"
    if received.output_tokens != received.asked_tokens:
        return "cut", f"[DONE] after {received.output_tokens} of {received.asked_tokens} tokens"
    return ("continued" if _longest_pause_s(received) > PAUSE_S else "whole"), ""


def _longest_pause_s(received: Received) -> float:
    if not received.pieces_s:
        return 0.0
    times = [*received.pieces_s, received.ended_s]
    return max(after - before for before, after in pairwise(times))
