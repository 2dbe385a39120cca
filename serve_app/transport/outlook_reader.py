"""Reads the outlook of a deployment out of Ray's key-value store, while somebody wants to know it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from serve_app.documents import STATUS, get_document
from serve_app.phases import read_phases
from serve_app.transport.outlook import UNKNOWN, Outlook, foresee

logger = logging.getLogger("ray.serve")

_INTERVAL_S = 1.0
_BELIEVED_S = 10.0
"""A reading older than this, for a store that does not answer, no longer says what a request waits for."""


class OutlookReader:
    """Between `start` and `stop`, keeps the outlook of one deployment at most about a second old.

    Args:
        app: The Serve application.
        deployment: The engine deployment.
        clock: Seconds.
    """

    def __init__(self, app: str, deployment: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._deployment = deployment
        self._task: asyncio.Task[None] | None = None
        self._clock = clock
        self._read_at = 0.0
        self._last: Outlook = UNKNOWN

    @property
    def current(self) -> Outlook:
        """The newest outlook there is; unknown once that is 10 s old."""
        return self._last if self._clock() - self._read_at <= _BELIEVED_S else UNKNOWN

    def start(self) -> None:
        """Read from now on, unless that is going on."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Read no more, and forget what was read."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._last = UNKNOWN

    async def _run(self) -> None:
        failing = False
        while True:
            try:
                self._last = await asyncio.to_thread(self._read)
                self._read_at = self._clock()
                failing = False
            except Exception:
                # A wait goes on without an outlook; it must not end because of one.
                if not failing:
                    logger.warning("%s: its outlook cannot be read", self._deployment, exc_info=True)
                failing = True
            await asyncio.sleep(_INTERVAL_S)

    def _read(self) -> Outlook:
        status = get_document(STATUS, self._app) or {}
        return foresee(
            status.get("models", {}).get(self._deployment),
            read_phases(self._app, self._deployment),
            time.time(),
        )
