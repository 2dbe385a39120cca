"""The health of an engine: a dead core, or work and no steps.

Only the engine core knows whether it has work. The front end also counts sequences on their way to the core,
and sequences that the core has refused or lost. So while no step comes, the core is asked. A core that hangs
does not answer, and a core that answers that it has no work does not hang.

A stalled engine loses its sequences to other replicas, so an engine without sequences is not healthy for that
reason. Only a step, or the core's answer, shows that the engine works again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serve_app.engine.launch import RunningEngine

logger = logging.getLogger("ray.serve")

_LOOK_INTERVAL_S = 0.5
"""The time between two looks. Longer gaps count as at most twice this time, because this process may itself
have been stopped."""
NOTICED_AFTER_S = 3.5
"""With the intervals of looks and of heartbeats, an ingress knows within 5 s."""
FIRST_RUN_S = 600.0
"""A step that runs a kind of requests for the first time may compile for so long: see `first_runs`."""
_LONGEST_STEPS = 3.0
"""A step may take three times the longest step so far. On a CPU, a prefill step of a large model takes many
seconds."""


class EngineHealth:
    """Watches a started engine, and says why its replica should get no requests.

    A stall lasts while the engine has sequences and takes no step, and its core does not answer that it has
    no work. An engine without any step never stalls, because its statistics may be off. While the core loads
    an adapter, it takes no step, and stalls only after `hang_timeout_s`. A first run of a kind of requests
    stalls only after `FIRST_RUN_S`.
    """

    def __init__(self, engine: RunningEngine, hang_timeout_s: float) -> None:
        self._engine = engine
        self._hang_timeout_s = hang_timeout_s
        self._stalled_s = 0.0
        self._longest_step_s = 0.0
        """The longest finished step, measured by two looks per second."""
        self._steps = 0
        self._looked_at: float | None = None
        self._allowed_s = 0.0
        """How long a step might take at the last look, because of an adapter or a first run; else 0."""
        self._still_since: float | None = None
        """When a step was last seen, or when an idle engine first had sequences again."""
        self._unknown: dict[str, float] = {}
        """Sequences of the front end that the core no longer had when it was asked, and when it was asked."""

    async def watch(self) -> None:
        asking: asyncio.Task[None] | None = None
        try:
            while True:
                self.look(time.monotonic())
                if self._stalled_s and (asking is None or asking.done()):
                    asking = asyncio.create_task(self.ask_core(time.monotonic()))
                await asyncio.sleep(_LOOK_INTERVAL_S)
        finally:
            if asking is not None:
                asking.cancel()

    def look(self, now: float) -> None:
        """Record the engine's progress. `now` is in seconds of a clock that never goes back."""
        steps, unfinished = self._engine.report.steps, len(self._engine.report.sequences)
        passed = min(now - self._looked_at, 2 * _LOOK_INTERVAL_S) if self._looked_at is not None else 0.0
        self._looked_at = now
        allowed_s, adapters = self._allowed_s, self._engine.adapters
        adding = adapters is not None and adapters.adding
        self._allowed_s = self._hang_timeout_s if adding else 0.0
        if self._engine.first_runs.under_way():
            self._allowed_s = max(FIRST_RUN_S, self._hang_timeout_s)
        if steps != self._steps and not allowed_s:
            self._longest_step_s = max(self._longest_step_s, self._stalled_s)
        idle = not unfinished and not self.stalls()
        if steps != self._steps or idle or not steps or (allowed_s and not self._allowed_s):
            self._still_since = None if idle else now
            self._stalled_s = 0.0
            self._steps = steps
        else:
            self._still_since = self._still_since or now
            self._stalled_s += passed

    async def ask_core(self, now: float) -> None:
        """Ask the engine core whether it has work. The core answers between two steps.

        A core without work does not hang. It reads the question after all sequences that were sent before, so
        it has ended or lost each of them. The results of ended sequences arrive within moments. Lost
        sequences would wait for ever and count as load, so they are aborted. `now` is as in `look`.
        """
        llm, asked_with = self._engine.llm, tuple(self._engine.report.sequences)
        with suppress(Exception):  # the health check reports a dead core
            if await llm.engine_core.call_utility_async("has_work"):
                return
            self._stalled_s = 0.0
            self._still_since = None
            left = self._engine.report.sequences
            self._unknown = {name: self._unknown.get(name, now) for name in asked_with if name in left}
            lost = [name for name, since in self._unknown.items() if now - since >= NOTICED_AFTER_S]
            if lost:
                logger.error("aborted %d sequences that the engine core does not know", len(lost))
                await llm.abort(lost, internal=True)

    def stalls(self, after_s: float = NOTICED_AFTER_S) -> bool:
        """Return whether no step came for `after_s` seconds, nor for three times the longest step."""
        return self._stalled_s >= max(after_s, self._allowed_s, _LONGEST_STEPS * self._longest_step_s)

    def standstill_s(self, now: float) -> float:
        """Return the least time for which a stalled engine has stood still; 0 for any other trouble.

        A sequence that arrived within this time did not cause the stall.
        """
        if self._engine.llm.errored or not self.stalls() or self._still_since is None:
            return 0.0
        return now - self._still_since

    def trouble(self) -> str:
        """Return why this replica should get no requests, or "" if it can take them."""
        if self._engine.llm.errored:
            return "its engine core has died"
        if self.stalls():
            unfinished = len(self._engine.report.sequences)
            left = f"with {unfinished} unfinished sequences" if unfinished else "and does not answer"
            return f"its engine has taken no step for {self._stalled_s:.0f} s, {left}"
        return ""

    async def check(self) -> None:
        """Raise RuntimeError once the engine core is gone or hangs; Ray then replaces the replica."""
        with raise_as_runtime_errors():
            await self._engine.llm.check_health()
        if self.stalls(self._hang_timeout_s):
            raise RuntimeError(self.trouble())


@contextmanager
def raise_as_runtime_errors() -> Iterator[None]:
    """Raise any exception of the block as a RuntimeError that names its type.

    A process that receives an exception imports the exception's class. A class of vLLM imports torch: that
    cost Ray Serve's controller 400 MB and stopped its event loop for 15 s.
    """
    try:
        yield
    except Exception as error:
        if type(error) is RuntimeError:
            raise
        # Logged here, because the receiver gets no traceback.
        logger.error("%s: %s", type(error).__name__, error, exc_info=error)
        raise RuntimeError(f"{type(error).__name__}: {error}") from None
