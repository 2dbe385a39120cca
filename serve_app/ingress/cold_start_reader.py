"""Keeps a deployment's cold-start progress current while requests wait for it."""

from __future__ import annotations

import asyncio
import time

from serve_app.cluster.bounded_call import BoundedCall
from serve_app.ingress.cold_start_progress import UNKNOWN, ColdStartProgress, cold_start_progress
from serve_app.ingress.stored_state import StoredState

_INTERVAL_S = 1.0
_WAIT_S = 1.0
_BELIEVED_S = 10.0
"""A reading older than this, of a store that does not answer, no longer says what a request waits for."""


class ProgressReader:
    """Between `start` and `stop`, keeps the progress of one deployment at most about a second old.

    Args:
        stored: What the replicas and the policy of the application have written down.
        deployment: The engine deployment.
    """

    def __init__(self, stored: BoundedCall[StoredState], deployment: str) -> None:
        self._stored = stored
        self._deployment = deployment
        self._task: asyncio.Task[None] | None = None
        self._last: ColdStartProgress = UNKNOWN

    @property
    def current(self) -> ColdStartProgress:
        """The newest progress there is; unknown once what it was read from is 10 s old."""
        age_s = self._stored.age_s()
        return self._last if age_s is not None and age_s <= _BELIEVED_S else UNKNOWN

    def start(self) -> None:
        """Read from now on. Nothing, if that is going on."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Stop reading, and forget what was read."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._last = UNKNOWN

    async def _run(self) -> None:
        while True:
            answer = await self._stored.get(_WAIT_S)
            if answer is not None:
                now = time.time()
                state = answer.value
                phases = state.phases.get(self._deployment, {})
                self._last = cold_start_progress(state.of(self._deployment, now), phases, now)
            await asyncio.sleep(_INTERVAL_S)
