"""What all worlds share: what their seed draws, and processes whose calls of stores fail."""

from __future__ import annotations

import asyncio
import gc
import logging
import tempfile
import time
import traceback
from contextvars import ContextVar
from pathlib import Path
from random import Random
from types import NoneType
from typing import NoReturn

import pytest
from sqlalchemy.exc import OperationalError
from vllm.v1.engine.exceptions import EngineDeadError

from tests.simulation.loop import SimulatedLoop, pause

UNIX_S = 1.7e9
CALM_S = 40.0
"""No fault begins later in a world."""


class Killed(BaseException):
    """Ends the steps of a process that no longer runs."""


_CAUSED = (Killed, EngineDeadError, OperationalError, OSError)
"""The errors that worlds cause."""


class World:
    """What goes wrong in a world, as its seed draws it.

    Args:
        seed: The seed.
        rates: How often each kind of call fails, to be chosen from. `kill` is the end of the process, and
            `slow` a pause: before any call, or as `slow end` before calls of one kind.
    """

    folder: Path
    """Files of the world, while it runs."""

    def __init__(self, seed: str, **rates: tuple[float, ...]) -> None:
        self.seed = seed
        self.loop = SimulatedLoop(seed)
        self.draw = Random(f"world {seed}")
        self.rates = {kind: self.draw.choice(some) for kind, some in rates.items()}
        self.faults: list[str] = []
        """What must hold, and did not."""
        self.processes: list[Process] = []
        self.calm_at = self.loop.time() + CALM_S
        self._away: dict[str, float] = {}

    def __str__(self) -> str:
        return f"{self.rates}"

    def fails(self, kind: str) -> bool:
        """Return whether a call fails now."""
        failing = self.draw.random() < self.rates.get(kind, 0.0) or self.away(kind)
        return self.loop.time() < self.calm_at and failing

    def away(self, what: str) -> bool:
        """Return whether something cannot be reached, or is full."""
        return self.loop.time() < self._away.get(what, 0.0)

    def take_away(self, what: str, seconds: tuple[float, ...] = (1.0, 5.0, 20.0)) -> None:
        """Have something away for some seconds."""
        self._away[what] = self.loop.time() + self.draw.choice(seconds)

    def wall(self) -> float:
        """Return Unix time by the clock of the process that asks."""
        process = current.get()
        return UNIX_S + self.loop.time() + (process.ahead_s if process is not None else 0.0)

    async def run(self) -> None:
        """Let everything happen, and check what is left."""
        raise NotImplementedError

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        """Have all code go by the world's time, and note the errors that it logs."""
        for clock in ("perf_counter", "monotonic"):
            patch.setattr(time, clock, self.loop.time)
        patch.setattr(time, "time", self.wall)
        patch.setattr(time, "time_ns", lambda: int(1e9 * self.wall()))
        patch.setattr(time, "sleep", pause)
        patch.setattr(logging.Logger, "callHandlers", self._note_error)

    def _note_error(self, record: logging.LogRecord) -> None:
        """Note an error that our code, or the HTTP server, logs because nobody has foreseen it."""
        error = (record.exc_info or (None, None))[1]
        if record.name in ("ray.serve", "uvicorn.error") and not isinstance(error, (*_CAUSED, NoneType)):
            self.loop.errors.append(f"{record.getMessage()}: {error!r}")

    def finish(self) -> None:
        """Run the world to its end. Then `faults` says what did not hold, and what is left."""
        with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
            self.folder = Path(folder)
            self.patch(patch)
            self._run_to_end()

    def _run_to_end(self) -> None:
        async def whole() -> None:
            await self.run()
            await asyncio.sleep(1.0)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            self.faults += [f"a task is left: {task.get_coro()}" for task in left]
            self.faults += [f"a connection is left: {end.name}" for end in self.loop.network.open]

        logging.disable(logging.WARNING)
        collector = gc.get_threshold()
        gc.freeze()  # else each collection would look at all of vLLM
        gc.collect()
        # Garbage may release a share or a place within any statement that allocates.
        gc.set_threshold(Random(f"collector {self.seed}").choice((20, 100, 700)), 2, 2)
        try:
            self.loop.run_until_complete(whole())
        except Exception as error:
            self.faults.append("".join(traceback.format_exception(error)).replace("\n", " | "))
            for task in asyncio.all_tasks(self.loop):
                task.cancel()
            self.loop.run_until_complete(asyncio.sleep(1.0))
        finally:
            logging.disable(logging.NOTSET)
            gc.unfreeze()
            gc.set_threshold(*collector)
            self.loop.close()
        self.faults += [f"{self.loop.threads} threads are left"] * bool(self.loop.threads)
        self.faults += [error for error in self.loop.errors if "Killed" not in error]


class Process:
    """A process whose calls of stores fail, and which may be killed at each of them."""

    def __init__(self, world: World, *, mortal: bool = True) -> None:
        self.world, self.mortal = world, mortal
        self.ahead_s = 0.0
        self.failures = 0
        """The calls of stores that failed."""
        self.died = asyncio.Event()
        world.processes.append(self)

    def step(self, store: str) -> None:
        """Let others run before a call of a store, and have the call fail."""
        slow = self.world.fails("slow") or self.world.fails(f"slow {store}")
        pause(self.world.draw.choice((1.0, 9.0)) if slow else None)
        if self.mortal and not self.died.is_set() and self.world.fails("kill"):
            self.world.loop.network.note("a process is killed")
            self.died.set()
        if self.died.is_set():
            raise Killed
        if self.world.fails(store):
            error = OperationalError("", {}, Exception("locked"))
            fail(OSError("reset") if store == "objects" else error)


current: ContextVar[Process | None] = ContextVar("current", default=None)
"""The process of the present task or thread."""


def step(store: str) -> None:
    """Begin a call of a store."""
    if (process := current.get()) is not None:
        process.step(store)


def fail(error: Exception) -> NoReturn:
    """Have a call of a store fail."""
    if (process := current.get()) is not None:
        process.failures += 1
    raise error
