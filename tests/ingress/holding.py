"""A queue of held requests with stubs around it, and what clients are told of their wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from serve_app.api.engine_client import ColdWait
from serve_app.ingress.admission import Admission
from serve_app.ingress.cold_start_progress import UNKNOWN, ColdStartProgress
from serve_app.ingress.held_requests import HeldRequests
from serve_app.settings import ModelSettings
from serve_app.settings.knobs import Knobs
from tests.ingress.stub_handle import StubHandle


@dataclass
class StubProgress:
    """Progress that is what the test says, and that knows whether anything waits for it."""

    current: ColdStartProgress = UNKNOWN
    running: bool = False

    def start(self) -> None:
        self.running = True

    def stop(self) -> None:
        self.running = False


@dataclass
class Waits:
    """Notes what a client would be told of its wait: a request's `tell_wait`."""

    told: list[ColdWait] = field(default_factory=list)
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, wait: ColdWait) -> None:
        self.told.append(wait)
        self.heard.set()


def hold(
    model: ModelSettings,
    handle: StubHandle,
    progress: StubProgress | None = None,
    clock: Callable[[], float] = time.perf_counter,
    **knobs: Any,
) -> Admission:
    """Admission to `model`, and the queue behind it, with the knobs given."""
    held = HeldRequests(model, handle, lambda: Knobs(**knobs), progress or StubProgress(), clock)
    return Admission(model, held, lambda: Knobs(**knobs))
