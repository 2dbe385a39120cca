"""The requests one ingress replica holds for one model until an engine replica can take them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ray.serve.handle import DeploymentHandle

from serve_app.api.client import ColdWait, EngineRequest
from serve_app.autoscaling.knobs import Knobs
from serve_app.settings.tree import ModelSettings
from serve_app.transport.outlook import Outlook
from serve_app.transport.refusals import cannot_start, replicas_busy, too_many_held, waited_too_long
from serve_app.transport.replicas import Replica, replica_set
from serve_app.transport.wake import Wake


class OutlookSource(Protocol):
    """Keeps the outlook of a deployment current between `start` and `stop`; both may be called again."""

    @property
    def current(self) -> Outlook:
        """The newest outlook there is."""

    def start(self) -> None:
        """Somebody wants to know."""

    def stop(self) -> None:
        """Nobody does any more."""


@dataclass(slots=True, eq=False)
class _Held:
    """One request in the queue; `place` becomes the replica it may go to."""

    since: float
    body_bytes: int
    place: asyncio.Future[Replica]


class HeldRequests:
    """A queue for a model without a replica: bounded in number and in time, first come, first served.

    While anybody is in it, and there is no replica, Ray is asked for one. Once there is, requests leave
    as long as some replica has room for them; those for which there is none stay until there is.

    For the event loop of the ingress alone, from the constructor on.

    Args:
        model: The model's settings.
        handle: Its engine deployment.
        knobs: The model's knobs, as they are now.
        outlooks: What to tell those who wait.
        clock: Seconds, as `time.perf_counter` gives them.
    """

    def __init__(
        self,
        model: ModelSettings,
        handle: DeploymentHandle,
        knobs: Callable[[], Knobs],
        outlooks: OutlookSource,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.replicas = replica_set(model.deployment_name)
        self._model = model.name
        self._limit = model.max_ongoing_requests
        self._knobs = knobs
        self._outlooks = outlooks
        self._clock = clock
        self._queue: dict[_Held, None] = {}
        self._bytes = 0
        self._wake = Wake(model.name, handle, self._needs_replica, self._fail_all)
        self.replicas.notify(self._release)

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def body_bytes(self) -> int:
        """Bytes of the bodies of the requests held."""
        return self._bytes

    def oldest_s(self) -> float:
        """How long the first in the queue has been held, in seconds; 0 if nobody is."""
        return self._clock() - next(iter(self._queue)).since if self._queue else 0.0

    async def replica(self, request: EngineRequest, *, again: bool = False) -> Replica:
        """A replica for `request`, with the request counted on it: `replicas.release` it in the end.

        Args:
            request: Waits if there is no replica.
            again: Whether it had a replica before, and lost it. It then waits for room as well.

        Raises:
            ApiError: 429 if replicas are up and full, or as many requests as may be are held already;
                503 if none is found in time, or the engines cannot start.
        """
        taken = self.replicas.take(self._limit)
        if taken is not None:
            return taken
        if len(self.replicas) and not again:
            raise replicas_busy(self._model, self._limit)
        knobs = self._knobs()
        if len(self._queue) >= knobs.max_held_requests:
            raise too_many_held(
                self._model, len(self._queue), knobs.max_held_requests, self._outlooks.current
            )
        return await self._hold(request, knobs)

    async def _hold(self, request: EngineRequest, knobs: Knobs) -> Replica:
        place: asyncio.Future[Replica] = asyncio.get_running_loop().create_future()
        held = _Held(self._clock(), len(request.body), place)
        self._enter(held)
        try:
            await self._wait(request, held, knobs)
            return place.result()
        except BaseException:
            # Given a replica and gone at the same moment.
            if place.done() and place.exception() is None:
                self.replicas.release(place.result())
            raise
        finally:
            self._leave(held)
            if request.watch is not None:
                request.watch.waited(self._clock() - held.since)

    async def _wait(self, request: EngineRequest, held: _Held, knobs: Knobs) -> None:
        """Return when `held` has its place; meanwhile tell the request's watch, and mind the deadline."""
        deadline = held.since + knobs.cold_wait_timeout_s
        tell_at = held.since + knobs.keep_alive_interval_s
        while not held.place.done():
            now = self._clock()
            if now >= deadline:
                raise waited_too_long(self._model, knobs.cold_wait_timeout_s, self._outlooks.current)
            if now >= tell_at:
                tell_at = now + knobs.keep_alive_interval_s
                await self._tell(request, now - held.since)
            # At least one turn of the event loop, however short the interval.
            await asyncio.wait((held.place,), timeout=max(0.0, min(deadline, tell_at) - self._clock()))

    async def _tell(self, request: EngineRequest, waited_s: float) -> None:
        if request.watch is not None:
            outlook = self._outlooks.current
            await request.watch.held(ColdWait(self._model, outlook.phase, outlook.eta_s, waited_s))

    def _enter(self, held: _Held) -> None:
        self._queue[held] = None
        self._bytes += held.body_bytes
        self._outlooks.start()
        if self._needs_replica():
            self._wake.start()

    def _leave(self, held: _Held) -> None:
        if held in self._queue:
            del self._queue[held]
            self._bytes -= held.body_bytes
        if not self._queue:
            self._outlooks.stop()
            if not len(self.replicas):
                # With a replica, the question has its answer and is about to end by itself.
                self._wake.stop()

    def _needs_replica(self) -> bool:
        return bool(self._queue) and not len(self.replicas)

    def _release(self) -> None:
        """Give those at the front a replica each, as far as there is room."""
        while self._queue:
            replica = self.replicas.take(self._limit)
            if replica is None:
                break
            first = next(iter(self._queue))
            self._leave(first)
            first.place.set_result(replica)
        if self._needs_replica():
            self._wake.start()
        elif not self._queue and not len(self.replicas):
            self._wake.stop()

    def _fail_all(self) -> None:
        for held in list(self._queue):
            self._leave(held)
            held.place.set_exception(cannot_start(self._model))
