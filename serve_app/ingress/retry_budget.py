"""The retry budget of a request: how many engines it may lose before it is given up.

An engine that dies with a request may have died of it. The budget is spent by two engines that failed by
themselves, by four that were killed, or by one and two.
"""

import time

from serve_app.ingress.engine_channel import NeverBegunError
from serve_app.ingress.replica_choice import Replica
from serve_app.wire.data_plane import BEAT_S, ENGINE_DEAD, ENGINE_KILLED

_BUDGET = 4
_FAILED, _KILLED = 2, 1
_HARMLESS_TOKENS = 16


class EngineFailedError(ConnectionError):
    """The engine died with the request, by itself: nobody killed it."""


def raise_if_lost(lost: str) -> None:
    """Raise the ConnectionError of one of the data plane's `LOSSES`; do nothing for ""."""
    if lost == ENGINE_DEAD:
        raise NeverBegunError("the replica's engine core was dead already")
    if lost == ENGINE_KILLED:
        raise ConnectionError("the replica's engine core was killed")
    if lost:
        raise EngineFailedError("the replica's engine core died")


class RetryBudget:
    """The retry budget of one request."""

    def __init__(self) -> None:
        self.spent = 0
        self.answered = False
        """Whether some engine has begun to answer."""

    @property
    def is_spent(self) -> bool:
        """Whether the request is to be sent to no other engine."""
        return self.spent >= _BUDGET

    def charge(self, error: ConnectionError, replica: Replica, sent_at: float) -> bool:
        """Charge the loss of a replica that had the request since `sent_at`. Returns whether it failed."""
        cost = self._cost(error, replica, sent_at)
        self.spent += cost
        return cost >= _FAILED

    def refund(self, spent_before: int, tokens: int) -> None:
        """Give back what had been spent before a replica, if that has produced enough tokens of the request.

        The tokens show that the earlier losses were not the request's fault.
        """
        if tokens >= _HARMLESS_TOKENS:
            self.spent -= spent_before

    def _cost(self, error: ConnectionError, replica: Replica, sent_at: float) -> int:
        """How much of the budget the loss of a replica takes.

        Nothing, if the replica had been dead or standing still when the request came. Little, if that is not
        sure, or if its process was killed or cut off: clusters lose nodes in a row, and few requests end a
        process so. But one that has no answer so far may have ended each process that tried to read it.
        """
        if isinstance(error, NeverBegunError):
            return 0
        if still_s := replica.still_s:
            there_s = time.perf_counter() - sent_at
            return 0 if there_s < still_s else _FAILED if there_s >= still_s + BEAT_S else _KILLED
        return _FAILED if isinstance(error, EngineFailedError) or not self.answered else _KILLED
