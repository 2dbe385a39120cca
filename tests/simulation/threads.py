"""Threads that take turns with the event loop, so that a seed draws the order of all their steps."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from random import Random
from typing import Any

from tests.simulation.loop import SimulatedLoop

_STEP_S = 0.003
"""The mean time that a thread waits for its turn."""
_here = threading.local()


class ThreadLoop(SimulatedLoop):
    """Calls in threads are real threads. Each runs alone until it pauses or ends.

    Stands for a pool of threads too: `submit` is that of `concurrent.futures`.
    """

    def __init__(self, seed: str) -> None:
        super().__init__(seed)
        self._step_draw = Random(f"threads {seed}")
        self.threads = 0
        """The threads that have not ended."""

    def run_in_executor(  # type: ignore[override]  # its types have a name for each argument
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        return asyncio.wrap_future(self.submit(partial(func, *args)), loop=self)

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """Call `work` in a thread, with the context of the caller."""
        thread = _Thread(self, partial(copy_context().run, work))
        self.call_later(self.step_s(), thread.go)
        return thread.done

    def step_s(self) -> float:
        """Return how long a thread waits for its next turn."""
        return self._step_draw.expovariate(1 / _STEP_S)


class _Thread:
    def __init__(self, loop: ThreadLoop, work: Callable[[], Any]) -> None:
        self.done: Future[Any] = Future()
        self.loop = loop
        self._work = work
        self._turn, self._over = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def go(self) -> None:
        """Let the thread run until it pauses or ends."""
        if self._thread.ident is None:
            if not self.done.set_running_or_notify_cancel():
                return
            self.loop.threads += 1
            self._thread.start()
        self._turn.release()
        self._over.acquire()

    def pause(self, seconds: float) -> None:
        self.loop.call_later(seconds, self.go)
        self._over.release()
        self._turn.acquire()

    def _run(self) -> None:
        self._turn.acquire()
        _here.thread = self
        try:
            self.done.set_result(self._work())
        except BaseException as error:  # as a pool passes it on
            self.done.set_exception(error)
        self.loop.threads -= 1
        self._over.release()


def pause(seconds: float | None = None) -> None:
    """Let all others run, if this is a thread of a `ThreadLoop`. Stands for `time.sleep` too."""
    if (thread := getattr(_here, "thread", None)) is not None:
        thread.pause(thread.loop.step_s() if seconds is None else seconds)
