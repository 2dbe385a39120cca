"""An event loop with its own time, which runs ready callbacks in an order drawn from a seed.

Calls in threads take turns with it, so that the seed draws the order of all steps.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from random import Random
from typing import Any

from tests.simulation.network import Network

START_S = 1000.0
_DISORDERS = (0.0, 0.05, 0.5, 1.0)
_CALLBACK_S = (1e-6, 1e-5, 2e-4)
"""The mean time that a callback takes, in a fast and in a slow world."""
_THREAD_S = 0.003
"""The mean time that a thread waits for its turn."""
_here = threading.local()


class SimulatedLoop(asyncio.BaseEventLoop):
    """Runs one world. No call waits in real time: if nothing is ready, the time jumps to the next timer.

    Connections are those of the simulated `network`.
    """

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, seed: str) -> None:
        super().__init__()
        self._draw = Random(f"order {seed}")
        self._now = START_S
        self._disorder = self._draw.choice(_DISORDERS)
        """How often a ready callback is run that is not the oldest."""
        self._callback_s = self._draw.choice(_CALLBACK_S)
        self.network = Network(self, seed)
        self.threads = 0
        self.errors: list[str] = []
        """What nobody has handled: errors of callbacks, and of tasks that were not awaited."""
        self.set_exception_handler(self._note_error)

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        ready, timers = self._ready, self._scheduled
        while timers and (timers[0].cancelled() or timers[0].when() <= self._now or not ready):
            timer = heapq.heappop(timers)
            timer._scheduled = False  # type: ignore[attr-defined]
            if not timer.cancelled():
                self._now = max(self._now, timer.when())
                ready.append(timer)
        if not ready:
            raise RuntimeError("no callback is ready, and no timer is set: the world stands still")
        if (chosen := self._draw.random() < self._disorder and self._draw.randrange(len(ready))) > 0:
            ready.rotate(-chosen)
        handle = ready.popleft()
        ready.rotate(chosen)
        if not handle.cancelled():
            handle._run()
            self._now += 2 * self._callback_s * self._draw.random()

    def _write_to_self(self) -> None:
        """Nothing sleeps, so nothing has to wake."""

    def run_in_executor(  # type: ignore[override]  # its types have a name for each argument
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        return asyncio.wrap_future(self.submit(partial(func, *args)), loop=self)

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """Call `work` in a thread, with the context of the caller. So the loop is a pool of threads too."""
        thread = _Thread(self, partial(copy_context().run, work))
        self.call_later(self.step_s(), thread.go)
        return thread.done

    def step_s(self) -> float:
        """Return how long a thread waits for its next turn."""
        return self._draw.expovariate(1 / _THREAD_S)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return self.network.listen(protocol_factory, host)

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        return await self.network.connect(protocol_factory, host, port)

    def _note_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.errors.append(f"{context['message']}: {context.get('exception')!r}")


class _Thread:
    """Runs alone from each turn until it pauses or ends."""

    def __init__(self, loop: SimulatedLoop, work: Callable[[], Any]) -> None:
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
    """Let all others run, if this is a thread of a `SimulatedLoop`. Stands for `time.sleep` too."""
    if (thread := getattr(_here, "thread", None)) is not None:
        thread.pause(thread.loop.step_s() if seconds is None else seconds)
