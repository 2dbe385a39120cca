"""Ray Serve's deployment handle, as much of it as the transports use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any


class StubHandle:
    """Lets through, refuses, or queues without end whoever asks for a replica."""

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
