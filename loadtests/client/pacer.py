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
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple
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


HEARTBEAT_S = 0.01


class Clock:
    """The timekeeping of one client from `begin` (monotonic) on: how late it sent, and how late it
    noticed."""

    def __init__(self, pacer: Pacer, begin: float) -> None:
        self._pacer, self._begin = pacer, begin
        self.sent_late_s = array("d")
        """How late each request was sent."""
        self._noticed_late_s = array("d")
        self._due = begin
        self._cpu_s = time.process_time()
        pacer.at(begin, self._start)

    def _start(self) -> None:
        self._cpu_s = time.process_time()
        self._heartbeat()

    def _heartbeat(self) -> None:
        """Count every heartbeat that has become due, also those that a stall delayed."""
        now = time.monotonic()
        while self._due <= now:
            self._noticed_late_s.append(now - self._due)
            self._due += HEARTBEAT_S
        self._pacer.at(self._due, self._heartbeat)

    def result(self) -> Timekeeping:
        """The timekeeping until now."""
        now = time.monotonic()
        if self._due <= now:  # a stall that no heartbeat has ended
            self._noticed_late_s.append(now - self._due)
        elapsed = now - self._begin
        return Timekeeping(
            *lateness_ms(self.sent_late_s),
            *lateness_ms(self._noticed_late_s),
            cpu_share=(time.process_time() - self._cpu_s) / elapsed if elapsed > 0 else 0.0,
        )


def lateness_ms(late_s: Sequence[float]) -> tuple[float, float]:
    """The lateness that 99 % did not exceed, and the largest, in milliseconds; 0 for early events."""
    if not late_s:
        return 0.0, 0.0
    late = np.maximum(np.asarray(late_s), 0.0) * 1e3
    return float(np.percentile(late, 99, method="inverted_cdf")), float(late.max())


def worst(parts: Sequence[Timekeeping]) -> Timekeeping:
    """The worst value of each figure among several processes. ValueError if there are none."""
    return Timekeeping(*(max(values) for values in zip(*map(astuple, parts), strict=True)))


_YOUNG = 10_000
"""New objects before a collection of the youngest, which takes about 0.3 ms."""


@contextmanager
def short_collections() -> Iterator[None]:
    """Keep the garbage collector away from all objects that exist: modules and the plan, hundreds of
    thousands.

    Only open requests come later. They must be collected, because exceptions and tasks form cycles.
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
