"""How well the client keeps time, and what keeps the garbage collector from disturbing it."""

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from loadtests.client.pacer import Pacer
from loadtests.record import Timekeeping

BEAT_S = 0.01
_BIN_S = 5e-5
_BINS = 40_000
"""2 s in all; of what is later only the latest is known exactly."""


class Lateness:
    """Counts how late things were, to 0.05 ms."""

    def __init__(self) -> None:
        self._counts = np.zeros(_BINS + 1, dtype=np.int64)
        self.max_s = 0.0

    def add(self, late_s: float) -> None:
        """Count one thing that was this late."""
        self._counts[min(int(max(late_s, 0.0) / _BIN_S), _BINS)] += 1
        self.max_s = max(self.max_s, late_s)

    def p99_s(self) -> float:
        """The lateness that 99 % did not exceed; 0 if nothing was counted."""
        total = int(self._counts.sum())
        if not total:
            return 0.0
        rank = -(-99 * total // 100)
        place = int(np.searchsorted(np.cumsum(self._counts), rank))
        return self.max_s if place == _BINS else min((place + 1) * _BIN_S, self.max_s)


class Clock:
    """The timekeeping of one client from `begin` (monotonic) on."""

    def __init__(self, pacer: Pacer, begin: float) -> None:
        self._pacer, self._begin = pacer, begin
        self.sent = Lateness()
        """How late requests were sent."""
        self._noticed = Lateness()
        self._due = begin
        self._cpu_s = time.process_time()
        pacer.at(begin, self._start)

    def _start(self) -> None:
        self._cpu_s = time.process_time()
        self._beat()

    def _beat(self) -> None:
        """Every beat that has become due counts, also those that a stall swallowed."""
        now = time.monotonic()
        while self._due <= now:
            self._noticed.add(now - self._due)
            self._due += BEAT_S
        self._pacer.at(self._due, self._beat)

    def result(self) -> Timekeeping:
        """As of now."""
        now = time.monotonic()
        if self._due <= now:  # A stall that no beat has seen the end of.
            self._noticed.add(now - self._due)
        elapsed = now - self._begin
        return Timekeeping(
            sent_p99_ms=self.sent.p99_s() * 1e3,
            sent_max_ms=self.sent.max_s * 1e3,
            noticed_p99_ms=self._noticed.p99_s() * 1e3,
            noticed_max_ms=self._noticed.max_s * 1e3,
            cpu_share=(time.process_time() - self._cpu_s) / elapsed if elapsed > 0 else 0.0,
        )


def worst(parts: Sequence[Timekeeping]) -> Timekeeping:
    """The worst value of each figure among several processes. ValueError if there are none."""
    return Timekeeping(
        sent_p99_ms=max(part.sent_p99_ms for part in parts),
        sent_max_ms=max(part.sent_max_ms for part in parts),
        noticed_p99_ms=max(part.noticed_p99_ms for part in parts),
        noticed_max_ms=max(part.noticed_max_ms for part in parts),
        cpu_share=max(part.cpu_share for part in parts),
    )


_YOUNG = 10_000
"""Objects that may come before the young are looked at: in some 0.3 ms."""


@contextmanager
def short_collections() -> Iterator[None]:
    """Set aside all that exists, so that collections look only at what came since.

    That is modules and the plan, hundreds of thousands of objects; what comes since are the requests that
    are open, and in a client process nothing else, because records leave it at once. A collection is
    needed all the same: exceptions and tasks form cycles.
    """
    thresholds = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
