"""The requests one ingress replica holds for one model until an engine replica can take them."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Protocol

from ray.serve.handle import DeploymentHandle

from serve_app.api.engine_client import ColdWait, EngineRequest
from serve_app.ingress.cold_start_progress import Outlook
from serve_app.ingress.hold_queue import HeldRequest, HoldQueue
from serve_app.ingress.pick import PATIENCE_SHARE, Place, replica_set
from serve_app.ingress.prompt_tokens import MOST_PROMPT_TOKENS, estimated_prompt_tokens
from serve_app.ingress.refusals import cannot_start, replicas_busy, too_many_held, waited_too_long
from serve_app.ingress.wake import Wake
from serve_app.settings.knobs import Knobs
from serve_app.settings.tree import ModelSettings

# Between the end of a sequence and the arrival of the next held request in the engine pass 5 to 10 ms, a
# step or a few. With no more sent than the batch takes, it would run with gaps. An eighth of it waiting in
# the engine fills them for answers down to a few dozen tokens, and is little to commit to one replica.
_AHEAD_SHARE = 1 / 8


class OutlookSource(Protocol):
    """Keeps the outlook of a deployment current between `start` and `stop`; both may be called again."""

    @property
    def current(self) -> Outlook:
        """The newest outlook there is."""

    def start(self) -> None:
        """Somebody wants to know."""

    def stop(self) -> None:
        """Nobody does any more."""


class HeldRequests:
    """A queue for a model without a replica: bounded in number and in time, first come, first served.

    While anybody is in it, and there is no replica, Ray is asked for one. Once there is, requests leave
    as fast as replicas have room for them in their batches; the others stay, for replicas come up seconds
    apart, and a request that waits here goes to whichever has room first. Until the last one has left,
    newcomers join the end: to overtake would be unfair, and would fill the engines' queues all the same.

    A model with replicas holds nobody but requests that lost theirs while all others are full.

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
        self._room = room_for_held(model)
        self._batch = model.max_num_seqs
        self._most_prompt_tokens = model.max_model_len or MOST_PROMPT_TOKENS
        self._knobs = knobs
        self._outlooks = outlooks
        self._clock = clock
        self._queue = HoldQueue()
        self._cold = False
        """Whether there was no replica at any time since somebody has been in the queue."""
        self._wake = Wake(model.name, handle, self._needs_replica, self._fail_all)
        self.replicas.notify(self._release)

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def body_bytes(self) -> int:
        """Bytes of the bodies of the requests held."""
        return self._queue.body_bytes

    def oldest_s(self) -> float:
        """The longest that anybody in the queue has been held, in seconds; 0 if nobody is."""
        since = self._queue.oldest_since()
        return self._clock() - since if since is not None else 0.0

    async def place(self, request: EngineRequest, *, again: bool = False) -> Place:
        """A place on a replica for `request`: `replicas.release` it in the end.

        Args:
            request: Waits if there is no replica, or others wait for one.
            again: Whether it had a replica before, and lost it. It then waits for room as well, before
                all others, and is not refused: it had been let in already.

        Raises:
            ApiError: 429 if replicas are up and full, or as many requests as may be are held already;
                503 if none is found in time, or the engines cannot start.
        """
        prompt_tokens = estimated_prompt_tokens(request, self._most_prompt_tokens)
        if not self._cold:
            taken = self.replicas.take(self._limit, prompt_tokens, self._patience_s(request), self._batch)
            if taken is not None:
                return taken
            if len(self.replicas) and not again:
                raise replicas_busy(self._model, self._limit)
        knobs = self._knobs()
        if len(self._queue) >= knobs.max_held_requests and not again:
            raise too_many_held(
                self._model, len(self._queue), knobs.max_held_requests, self._outlooks.current
            )
        place: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        held = HeldRequest(
            self._clock(), len(request.body), prompt_tokens, self._patience_s(request), again, place
        )
        return await self._hold(request, held, knobs)

    async def _hold(self, request: EngineRequest, held: HeldRequest, knobs: Knobs) -> Place:
        self._enter(held)
        try:
            await self._wait(request, held, knobs)
            return held.place.result()
        except BaseException:
            # Given a place and gone at the same moment.
            if held.place.done() and held.place.exception() is None:
                self.replicas.release(held.place.result())
            raise
        finally:
            self._leave(held)
            if request.watch is not None:
                request.watch.waited(self._clock() - held.since)

    async def _wait(self, request: EngineRequest, held: HeldRequest, knobs: Knobs) -> None:
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

    def _enter(self, held: HeldRequest) -> None:
        self._queue.enter(held)
        self._outlooks.start()
        if self._needs_replica():
            self._cold = True
            self._wake.start()

    def _leave(self, held: HeldRequest) -> None:
        self._queue.leave(held)
        if not self._queue:
            self._cold = False
            self._outlooks.stop()
            if not len(self.replicas):
                # With a replica, the question has its answer and is about to end by itself.
                self._wake.stop()

    def _patience_s(self, request: EngineRequest) -> float:
        return PATIENCE_SHARE * self._knobs().ttft_target_s if request.streams else 0.0

    def _needs_replica(self) -> bool:
        return bool(self._queue) and not len(self.replicas)

    def _release(self) -> None:
        """Give those at the front a place each, as far as there is room."""
        while (first := self._queue.first()) is not None:
            limit = self._room if self._cold else self._limit
            place = self.replicas.take(limit, first.prompt_tokens, first.patience_s, self._batch)
            if place is None:
                break
            self._leave(first)
            first.place.set_result(place)
        if self._needs_replica():
            self._cold = True
            self._wake.start()
        elif not self._queue and not len(self.replicas):
            self._wake.stop()

    def _fail_all(self) -> None:
        for held in self._queue.all():
            self._leave(held)
            held.place.set_exception(cannot_start(self._model))


def room_for_held(model: ModelSettings) -> int:
    """Requests in flight on one replica up to which held ones are released to it.

    From the settings: they are where the replica's engine has its batch from too. A request of several
    sequences counts as one; what then exceeds the batch waits in the engine's queue.
    """
    return min(model.max_ongoing_requests, model.max_num_seqs + math.ceil(_AHEAD_SHARE * model.max_num_seqs))
