"""A queue of held requests with stubs around it, and what clients are told of their wait."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from serve_app.api.engine_client import ColdWait, EngineRequest
from serve_app.api.errors import ApiError
from serve_app.ingress.admission import Admission
from serve_app.ingress.cold_queue import ColdQueue
from serve_app.ingress.cold_start_progress import UNKNOWN, ColdStartProgress
from serve_app.ingress.replica_choice import Reservation
from serve_app.settings import ModelSettings
from serve_app.settings.knobs import Knobs
from tests.ingress.stub_handle import StubHandle
from tests.stub_engine import LIMIT_S

MODEL = ModelSettings(name="tide", max_ongoing_requests=4)
BODY = b'{"model":"tide"}'


def request(**changes: Any) -> EngineRequest:
    return EngineRequest("chat_completions", changes.pop("body", BODY), "r-1", **changes)


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
    on_cold: Callable[[], None] = lambda: None,
    **knobs: Any,
) -> Admission:
    """Admission to `model`, and the queue behind it, with the knobs given."""
    held = ColdQueue(model, handle, lambda: Knobs(**knobs), progress or StubProgress(), clock, on_cold)
    return Admission(model, held, lambda: Knobs(**knobs))


class Queue:
    """Held requests of one model, and what is around them."""

    def __init__(self, handle: StubHandle | None = None, **knobs: Any) -> None:
        self.handle = handle or StubHandle(holds=True)
        self.progress = StubProgress()
        self.cold_starts = 0
        self.admission = hold(MODEL, self.handle, self.progress, on_cold=self._on_cold, **knobs)
        self.held = self.admission.queue

    def _on_cold(self) -> None:
        assert len(self.held) > 0  # it is what the policy is told
        self.cold_starts += 1

    def ask(self, **options: Any) -> asyncio.Task[Reservation]:
        """A request for a slot, on its way."""
        return asyncio.create_task(self.admission.take(request(), **options))

    async def held_requests(self, count: int) -> list[asyncio.Task[Reservation]]:
        """That many requests, all in the queue."""
        tasks = [self.ask() for _ in range(count)]
        await asyncio.sleep(0)
        assert len(self.held) == count
        return tasks

    def up(self, *names: str) -> None:
        """Ray pushes these replicas."""
        self.held.replicas.update({name: {"address": f"{name}:1", "token": "t"} for name in names})

    async def refusal(self, **options: Any) -> ApiError:
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(ApiError) as caught:
                await self.admission.take(request(), **options)
        return caught.value


async def ids(tasks: list[asyncio.Task[Reservation]]) -> list[str]:
    async with asyncio.timeout(LIMIT_S):
        return [slot.replica.replica_id for slot in await asyncio.gather(*tasks)]
