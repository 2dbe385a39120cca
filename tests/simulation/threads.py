"""Processes with threads that take turns with the event loop, so that a seed draws the order of all steps."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import ContextVar, copy_context
from functools import partial
from random import Random
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

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


UNIX_S = 1.7e9
CALM_S = 40.0
"""No fault begins later in a world."""


class Killed(BaseException):
    """Ends the steps of a process that no longer runs."""


class World:
    """What goes wrong in a world, as its seed draws it.

    Args:
        seed: The seed.
        rates: How often each kind of call fails, to be chosen from. `kill` is the end of the process.
    """

    def __init__(self, seed: str, **rates: tuple[float, ...]) -> None:
        self.loop = ThreadLoop(seed)
        self.draw = Random(f"world {seed}")
        self.rates = {kind: self.draw.choice(some) for kind, some in rates.items()}
        self.faults: list[str] = []
        """What must hold, and did not."""
        self.processes: list[Process] = []
        self.calm_at = self.loop.time() + CALM_S
        self._away: dict[str, float] = {}

    def __str__(self) -> str:
        return f"{self.rates}"

    @property
    def trace(self) -> list[str]:
        """What happened, and when."""
        return self.loop.network.trace

    def fails(self, kind: str) -> bool:
        """Return whether a call fails now."""
        failing = self.draw.random() < self.rates[kind] or self.away(kind)
        return self.loop.time() < self.calm_at and failing

    def away(self, what: str) -> bool:
        """Return whether something cannot be reached, or is full."""
        return self.loop.time() < self._away.get(what, 0.0)

    def take_away(self, what: str) -> None:
        """Have something away for some seconds."""
        self._away[what] = self.loop.time() + self.draw.choice((1.0, 5.0, 20.0))

    def wall(self) -> float:
        """Return Unix time by the clock of the process that asks."""
        process = current.get()
        return UNIX_S + self.loop.time() + (process.ahead_s if process is not None else 0.0)

    def patch_time(self, patch: pytest.MonkeyPatch) -> None:
        """Have all code go by the world's time."""
        for clock in ("perf_counter", "monotonic"):
            patch.setattr(time, clock, self.loop.time)
        patch.setattr(time, "time", self.wall)
        patch.setattr(time, "time_ns", lambda: int(1e9 * self.wall()))
        patch.setattr(time, "sleep", pause)

    def finish(self, world: Coroutine[Any, Any, None]) -> None:
        """Run a world to its end, and note what is left of it."""

        async def whole() -> None:
            await world
            await asyncio.sleep(1.0)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            self.faults += [f"a task is left: {task.get_coro()}" for task in left]

        logging.disable()
        try:
            self.loop.run_until_complete(whole())
        except Exception as error:
            self.faults.append(f"{error!r}")
        finally:
            logging.disable(logging.NOTSET)
            self.loop.close()
        self.faults += [f"{self.loop.threads} threads are left"] * bool(self.loop.threads)
        self.faults += [error for error in self.loop.errors if "Killed" not in error]


class Process:
    """A process whose calls of stores fail, and which may be killed at each of them."""

    def __init__(self, world: World, *, mortal: bool = True) -> None:
        self.world, self.mortal = world, mortal
        self.ahead_s = 0.0
        """How far its clock is ahead."""
        self.died = asyncio.Event()
        world.processes.append(self)

    def step(self, store: str) -> None:
        """Let others run before a call of a store, and have the call fail."""
        pause()
        if self.mortal and not self.died.is_set() and self.world.fails("kill"):
            self.world.loop.network.note("a process is killed")
            self.died.set()
        if self.died.is_set():
            raise Killed
        if self.world.fails(store):
            error = OperationalError("", {}, Exception("locked"))
            raise OSError("reset") if store == "objects" else error


current: ContextVar[Process | None] = ContextVar("current", default=None)
"""The process of the present task or thread."""


def step(store: str) -> None:
    """Begin a call of a store."""
    if (process := current.get()) is not None:
        process.step(store)
