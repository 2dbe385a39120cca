"""Fakes for the tests of the ingress, which import no engine: Ray's handle, progress, a waiting client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from serve_app.api.dialect import ColdWait
from serve_app.api.engine_client import EngineRequest, Operation
from serve_app.ingress.cold_start_progress import UNKNOWN, ColdStartProgress

BODY = b'{"model":"tide"}'
WAITED_S = 1.5


def request(**changes: Any) -> EngineRequest:
    """A request that arrived 1.5 s ago."""
    arrived = time.perf_counter() - WAITED_S
    operation: Operation = changes.pop("operation", "chat_completions")
    return EngineRequest(operation, changes.pop("body", BODY), "r-1", arrived, **changes)


class FakeHandle:
    """Ray's handle of a deployment: it finds, refuses or awaits a replica."""

    def __init__(
        self,
        *,
        on_choose: Callable[[], None] = lambda: None,
        refuses: Exception | None = None,
        holds: bool = False,
    ) -> None:
        self.chosen = 0
        """Times somebody has asked for a replica."""
        self.asking = 0
        self.held = 0
        self.asked = asyncio.Event()
        self.init_options: dict[str, Any] | None = None
        self.refuses = refuses
        self.holds = holds
        self._on_choose = on_choose

    @property
    def is_initialized(self) -> bool:
        return self.init_options is not None

    def _init(self, **options: Any) -> None:
        assert not self.is_initialized
        self.init_options = options

    @asynccontextmanager
    async def choose_replica(self) -> AsyncIterator[None]:
        assert self.is_initialized
        self.chosen += 1
        self.asking += 1
        self.asked.set()
        try:
            if self.holds:
                await asyncio.Event().wait()
            if self.refuses is not None:
                raise self.refuses
        finally:
            self.asking -= 1
        self._on_choose()
        self.held += 1
        try:
            yield
        finally:
            self.held -= 1


@dataclass
class FakeProgress:
    """The progress that the test sets."""

    current: ColdStartProgress = UNKNOWN
    running: bool = False
    on_rollout_failed: Callable[[str], None] = lambda _: None
    on_requested: Callable[[], None] = lambda: None

    def start(self, on_rollout_failed: Callable[[str], None], on_requested: Callable[[], None]) -> None:
        self.running, self.on_rollout_failed, self.on_requested = True, on_rollout_failed, on_requested

    def stop(self) -> None:
        self.running = False


@dataclass
class Waits:
    """Records the progress that a queued client hears: a request's `tell_wait`."""

    told: list[ColdWait] = field(default_factory=list)
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, wait: ColdWait) -> None:
        self.told.append(wait)
        self.heard.set()
