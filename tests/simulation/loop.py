"""An event loop with its own time, which runs ready callbacks in an order drawn from a seed."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from tests.simulation.network import Network

START_S = 1000.0
_DISORDERS = (0.0, 0.05, 0.5, 1.0)
_CALLBACK_S = (1e-6, 1e-5, 2e-4)
"""The mean time that a callback takes, in a fast and in a slow world."""
_THREAD_S = 0.003
"""The mean time of a call in a thread."""


class SimulatedLoop(asyncio.BaseEventLoop):
    """Runs one world. No call waits in real time: if nothing is ready, the time jumps to the next timer.

    A call in a thread becomes a step of the loop. Connections are those of the simulated `network`.
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
        done = self.create_future()

        def run() -> None:
            if done.cancelled():
                return
            try:
                result = func(*args)
            except Exception as error:
                done.set_exception(error)
            else:
                done.set_result(result)

        self.call_later(self._draw.expovariate(1 / _THREAD_S), run)
        return done

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return self.network.listen(protocol_factory, host)

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        return await self.network.connect(protocol_factory, host, port)

    def _note_error(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.errors.append(f"{context['message']}: {context.get('exception')!r}")
