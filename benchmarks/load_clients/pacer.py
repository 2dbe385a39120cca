"""Calls at exact times in an event loop: asyncio's own timers are late by up to a millisecond.

epoll takes whole milliseconds, and so do uvloop's timers. A Linux timerfd takes nanoseconds and wakes
the loop like a socket does, without spinning: measured, 0.06 ms late at the median.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import heapq
import itertools
import os
import time
from collections.abc import Callable
from typing import Self

_TFD_TIMER_ABSTIME = 1
_NS = 1_000_000_000


class Pacer:
    """Calls functions at times of `time.monotonic`, in order. For one event loop, on Linux."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._fd = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        loop.add_reader(self._fd, self._run)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Call at `when`, or as soon as the loop is free if that has passed."""
        entry = (when, next(self._order), call)
        heapq.heappush(self._due, entry)
        if self._due[0] is entry:
            self._arm()

    def _arm(self) -> None:
        nanoseconds = max(1, round(self._due[0][0] * _NS))  # Zero would disarm it.
        value = (ctypes.c_long * 4)(0, 0, *divmod(nanoseconds, _NS))
        if self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, value, None):
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def _run(self) -> None:
        with contextlib.suppress(BlockingIOError):  # Armed anew since the loop saw it expire.
            os.read(self._fd, 8)
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()
        if self._due:
            self._arm()
