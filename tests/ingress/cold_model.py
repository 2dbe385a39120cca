"""The admission of a cold model, and named requests for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

from serve_app.api.engine_client import EngineRequest
from serve_app.api.errors import ApiError
from serve_app.ingress.admission import Admission
from serve_app.ingress.replica import Replica, Reservation
from serve_app.ingress.replica_set import ReplicaSet
from serve_app.settings.caller import Caller, Lane
from serve_app.settings.knobs import Knobs
from serve_app.settings.tree import ModelSettings
from tests.ingress.fakes import FakeHandle, FakeProgress
from tests.refusal import refusal_of

LIMIT, PLACES = 5, 3
"""The most requests on a replica, and those that a cold start releases to it: its batch, and an eighth."""
SETTINGS = ModelSettings(name="tide", max_num_seqs=2, max_ongoing_requests=LIMIT)


def of_lane(lane: Lane = "standard", key: str = "", **changes: Any) -> EngineRequest:
    return EngineRequest(
        "chat_completions", changes.pop("body", b"x" * 400), "r-1", caller=Caller(key, lane), **changes
    )


async def settle() -> None:
    """Let every task run until it waits: from a reservation to a task's end it takes three turns."""
    for _ in range(5):
        await asyncio.sleep(0)


class ColdModel:
    """A cold model, and a clock that the test moves. `order` has the names of released requests, in order."""

    def __init__(
        self, handle: FakeHandle | None = None, settings: ModelSettings = SETTINGS, **knobs: Any
    ) -> None:
        self.now = 100.0
        self.handle = handle or FakeHandle(holds=True)
        self.progress = FakeProgress()
        self.cold_starts = 0
        self.replicas = ReplicaSet(clock=self.clock)
        self.admission = Admission(
            settings,
            self.replicas,
            self.handle,
            lambda: Knobs(**knobs),
            self.progress,
            self.clock,
            self._on_cold,
        )
        self.queue = self.admission.queue
        self.order: list[str] = []
        self.taken: dict[str, Reservation] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def clock(self) -> float:
        return self.now

    def _on_cold(self) -> None:
        assert self.queue.foreground > 0  # the policy reads this number
        self.cold_starts += 1

    async def ask(
        self, names: str, lane: Lane = "standard", asked: EngineRequest | None = None, **options: Any
    ) -> None:
        """Let requests arrive, with the key of their name's first letter."""
        for name in names.split():
            one = asked or of_lane(lane, name[0])
            self.tasks[name] = asyncio.create_task(self._one(name, one, options))
            await settle()

    async def _one(self, name: str, asked: EngineRequest, options: dict[str, Any]) -> None:
        self.taken[name] = await self.admission.take(asked, **options)
        self.order.append(name)

    def list(self, *names: str) -> None:
        """Have Ray list these replicas."""
        self.replicas.update({name: {"address": f"{name}:1", "token": "t", "identity": ""} for name in names})

    async def up(self, *names: str) -> None:
        """Have Ray list these replicas, and let all go on that can."""
        self.list(*names)
        await settle()

    async def end(self, names: str) -> None:
        for name in names.split():
            self.replicas.release(self.taken.pop(name))
            await settle()

    async def leave(self, name: str) -> None:
        """The client leaves."""
        self.tasks[name].cancel()
        await settle()

    async def refusal(self, lane: Lane = "standard", key: str = "s") -> ApiError:
        """Return the refusal of a new request."""
        return await refusal_of(self.admission.take(of_lane(lane, key)))

    def error_of(self, name: str) -> ApiError:
        """Return the refusal of a request that was queued."""
        error = self.tasks[name].exception()
        assert isinstance(error, ApiError)
        return error

    @property
    def listed(self) -> Sequence[Replica]:
        return [*self.replicas.listed()]

    @property
    def in_flight(self) -> dict[str, int]:
        return dict(Counter(each.replica.replica_id for each in self.taken.values()))
