"""Ray Serve's deployment handle, as much of it as the transports use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any


class StubItems:
    """A streaming call's results: yields what it is given, raises what is an exception, waits for events."""

    def __init__(self, items: list[Any]) -> None:
        self._items = items
        self.cancelled = False

    def __aiter__(self) -> StubItems:
        return self

    async def __anext__(self) -> Any:
        if not self._items:
            raise StopAsyncIteration
        item = self._items.pop(0)
        if isinstance(item, Exception):
            raise item
        if isinstance(item, asyncio.Event):
            await item.wait()
            return await anext(self)
        return item

    def cancel(self) -> None:
        self.cancelled = True


class StubHandle:
    """Lets through, refuses, or holds without end whoever asks for a replica; answers calls."""

    def __init__(
        self,
        *items: Any,
        on_choose: Callable[[], None] = lambda: None,
        refuses: Exception | None = None,
        holds: bool = False,
    ) -> None:
        self.items = StubItems(list(items))
        self.given: dict[str, Any] = {}
        """Options given so far."""
        self.calls: list[tuple[Any, ...]] = []
        """Of each call: the method, the replica picked, and the arguments."""
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

    def options(self, **given: Any) -> StubHandle:
        self.given = {**self.given, **given}
        return self

    def remote(self, *arguments: Any) -> StubItems:
        assert self.given["stream"]
        self.calls.append((self.given["method_name"], self.given["session_id"], *arguments))
        return self.items
