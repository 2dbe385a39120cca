"""The retry budget of a request: how many engines it may lose before it fails.

The request may have caused the death of an engine that ran it. The budget allows the loss of two engines that
failed by themselves, of four that were killed, or of one and two.
"""

import time

from serve_app.ingress.engine_channel import NeverBegunError
from serve_app.ingress.replica_choice import Replica
from serve_app.wire.data_plane import BEAT_S, ENGINE_DEAD, ENGINE_KILLED

_BUDGET = 4
_FAILED, _KILLED = 2, 1
_HARMLESS_TOKENS = 16


class EngineFailedError(ConnectionError):
    """The engine died by itself with the request."""


def raise_if_lost(lost: str) -> None:
    """Raise the ConnectionError of one of the data plane's `LOSSES`; do nothing for ""."""
    if lost == ENGINE_DEAD:
        raise NeverBegunError("the replica's engine core was dead already")
    if lost == ENGINE_KILLED:
        raise ConnectionError("the replica's engine core was killed")
    if lost:
        raise EngineFailedError("the replica's engine core died")


class RetryBudget:
    """The part of one request's budget that is spent."""

    def __init__(self) -> None:
        self.spent = 0
        self.answered = False
        """Whether any engine has begun to answer."""

    @property
    def is_spent(self) -> bool:
        """Whether the request may be sent to no other engine."""
        return self.spent >= _BUDGET

    def charge(self, error: ConnectionError, replica: Replica, sent_at: float) -> bool:
        """Charge the loss of a replica that got the request at `sent_at`. Returns whether it failed."""
        cost = self._cost(error, replica, sent_at)
        self.spent += cost
        return cost >= _FAILED

    def refund(self, spent_before: int, tokens: int) -> None:
        """Give back `spent_before`, spent before a replica, if that replica produced enough `tokens`.

        The tokens show that the request did not cause the earlier losses.
        """
        if tokens >= _HARMLESS_TOKENS:
            self.spent -= spent_before

    def _cost(self, error: ConnectionError, replica: Replica, sent_at: float) -> int:
        """Return the cost of the loss of a replica.

        The cost is 0 if the replica was dead or stood still before the request came, and low if that is not
        sure. It is also low if the process was killed or cut off: clusters lose nodes in a row, and a request
        rarely ends a process this way. But until the first answer, the request may have ended each process
        that read it, so the cost is high.
        """
        if isinstance(error, NeverBegunError):
            return 0
        if still_s := replica.still_s:
            there_s = time.perf_counter() - sent_at
            return 0 if there_s < still_s else _FAILED if there_s >= still_s + BEAT_S else _KILLED
        return _FAILED if isinstance(error, EngineFailedError) or not self.answered else _KILLED
