"""How long to wait before a server that ended is started again, and when to give up."""

from __future__ import annotations

_FIRST_S = 1.0
_LONGEST_S = 60.0
STABLE_S = 300.0
"""After so many seconds of readiness an end counts as the first again."""
ATTEMPTS = 5
"""So many starts in a row that are never ready are given up."""


class Backoff:
    """Delays of 1, 2, 4, … 60 s between one start and the next."""

    def __init__(self) -> None:
        self._ends = 0
        self._never_ready = 0
        self._was_ready = False

    def after(self, ready_s: float | None) -> float | None:
        """Seconds to wait after a server that was ready for `ready_s` seconds, None for one that never was.

        Returns:
            None to give up: the very first start was never ready, so that nothing says that this
            configuration can serve here, or `ATTEMPTS` starts in a row were not.
        """
        if ready_s is None:
            self._never_ready += 1
            if not self._was_ready or self._never_ready >= ATTEMPTS:
                return None
        else:
            self._was_ready = True
            self._never_ready = 0
            if ready_s >= STABLE_S:
                self._ends = 0
        self._ends += 1
        return float(min(_LONGEST_S, _FIRST_S * 2 ** (self._ends - 1)))
