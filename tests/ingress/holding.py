"""A queue of held requests with stubs around it, and a request's watch."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from serve_app.api.engine_client import ColdWait
from serve_app.ingress.cold_start_progress import UNKNOWN, Outlook
from serve_app.ingress.hold import HeldRequests
from serve_app.settings import ModelSettings
from serve_app.settings.knobs import Knobs
from tests.ingress.stub_handle import StubHandle


@dataclass
class StubOutlooks:
    """An outlook that is what it is told to be, and knows whether anybody wants it."""

    current: Outlook = UNKNOWN
    running: bool = False

    def start(self) -> None:
        self.running = True

    def stop(self) -> None:
        self.running = False


@dataclass
class Watch:
    """Notes what a transport tells of a request."""

    told: list[ColdWait] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    admissions: int = 0
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    async def held(self, wait: ColdWait) -> None:
        self.told.append(wait)
        self.heard.set()

    def waited(self, seconds: float) -> None:
        self.waits.append(seconds)

    def admitted(self) -> None:
        self.admissions += 1


def hold(
    model: ModelSettings,
    handle: StubHandle,
    outlooks: StubOutlooks | None = None,
    clock: Callable[[], float] = time.perf_counter,
    **knobs: Any,
) -> HeldRequests:
    """A queue for `model` whose knobs are those given."""
    return HeldRequests(model, handle, lambda: Knobs(**knobs), outlooks or StubOutlooks(), clock)
