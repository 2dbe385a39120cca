"""Sleeps that end at exact times: the timers of event loops are late by up to a millisecond.

epoll waits whole milliseconds, and so do uvloop's timers. A Linux timerfd counts nanoseconds and wakes the
loop as a socket does, without spinning: measured, 0.06 ms late at the median. Elsewhere the loop's own
timers are used; how late they are shows in the run's timekeeping.
"""

import asyncio
import contextlib
import ctypes
import gc
import heapq
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

import numpy as np

from loadtests.record import Timekeeping

_TFD_TIMER_ABSTIME = 1
_NS = 1_000_000_000


class Pacer:
    """Calls functions at times of `time.monotonic`, in order, never early. For one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._fd: int | None = None
        self._handle: asyncio.TimerHandle | None = None
        if sys.platform.startswith("linux"):
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
            if self._fd < 0:
                raise OSError(ctypes.get_errno(), "timerfd_create failed")
            loop.add_reader(self._fd, self._expired)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._due.clear()
        if self._handle is not None:
            self._handle.cancel()
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Call at `when`, or as soon as the loop is free if that has passed."""
        entry = (when, next(self._order), call)
        heapq.heappush(self._due, entry)
        if self._due[0] is entry:
            self._arm()

    async def until(self, when: float) -> None:
        """Return at `when`; at once if that has passed."""
        if when <= time.monotonic():
            return
        reached = self._loop.create_future()
        self.at(when, lambda: None if reached.done() else reached.set_result(None))
        await reached

    def _arm(self) -> None:
        when = self._due[0][0]
        if self._fd is None:
            if self._handle is not None:
                self._handle.cancel()
            self._handle = self._loop.call_later(max(0.0, when - time.monotonic()), self._run)
            return
        nanoseconds = max(1, round(when * _NS))  # Zero would disarm it.
        value = (ctypes.c_long * 4)(0, 0, *divmod(nanoseconds, _NS))
        if self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, value, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def _expired(self) -> None:
        assert self._fd is not None
        with contextlib.suppress(BlockingIOError):  # Armed anew since the loop saw it expire.
            os.read(self._fd, 8)
        self._run()

    def _run(self) -> None:
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()
        if self._due:
            self._arm()


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
