"""The requests that one ingress replica holds for one model until an engine replica can take them."""

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ray.serve.handle import DeploymentHandle

from serve_app.api.cold_wait import ColdWait
from serve_app.api.engine_client import EngineRequest
from serve_app.api.prompt_prefix import PromptPrefix
from serve_app.ingress.cold_start_progress import ProgressReader
from serve_app.ingress.refusals import (
    cannot_start,
    replaced,
    replicas_busy,
    too_many_held,
    waited_too_long,
)
from serve_app.ingress.replica_choice import Slot
from serve_app.ingress.replica_set import replica_set
from serve_app.ingress.wake import Wake
from serve_app.settings.knobs import Knobs
from serve_app.settings.tree import ModelSettings

# Between the end of a sequence and the arrival of the next held request in the engine pass 5 to 10 ms, a
# step or a few. With no more sent than the batch takes, it would run with gaps. An eighth of it waiting in
# the engine fills them for answers down to a few dozen tokens, and is little to commit to one replica.
_AHEAD_SHARE = 1 / 8


@dataclass(slots=True, eq=False)
class HeldRequest:
    """One request in the queue."""

    since: float
    """When it was held, in seconds of the caller's clock."""
    body_bytes: int
    prompt_tokens: int
    """As estimated at its admission."""
    prefill_budget_s: float
    """How long it may wait for prefill once it is on a replica; see `ReplicaSet.take`."""
    prefix: PromptPrefix | None
    """What its prompt may share with others."""
    again: bool
    """Whether it had a replica before, and lost it."""
    identity: str | None
    """The model that has begun its answer, which alone can go on with it; None for an answer not begun."""
    slot: asyncio.Future[Slot]
    """Becomes the request's slot on a replica."""


@dataclass(slots=True)
class HoldQueue:
    """First come, first served; requests that had a replica and lost it come before all others.

    Those were let in before every request that is still here.
    """

    _again: dict[HeldRequest, None] = field(default_factory=dict)
    _newcomers: dict[HeldRequest, None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._again) + len(self._newcomers)

    def enter(self, held: HeldRequest) -> None:
        """Put `held` behind those of its kind."""
        self._line(held)[held] = None

    def leave(self, held: HeldRequest) -> None:
        """Take `held` out, if it is still in."""
        self._line(held).pop(held, None)

    def leaving(self) -> Iterator[HeldRequest]:
        """The requests in the order in which they leave. Each newcomer leaves before the next one comes."""
        yield from list(self._again)
        while self._newcomers:
            yield next(iter(self._newcomers))

    def all(self) -> list[HeldRequest]:
        """Every request, in the order in which they leave."""
        return [*self._again, *self._newcomers]

    def _line(self, held: HeldRequest) -> dict[HeldRequest, None]:
        return self._again if held.again else self._newcomers


class HeldRequests:
    """A queue for a model without a replica: bounded in number and in time, first come, first served.

    While requests are in it and there is no replica, Ray is asked for one. Once there is one, requests leave
    as fast as replicas have room for them in their batches. The others stay: replicas come up seconds apart,
    and a request that waits here goes to whichever has room first. Until the last one has left, newcomers
    join the end: to overtake would be unfair, and would fill the engines' queues all the same.

    For a model with replicas, only requests are held that lost theirs while all others are full.

    For the event loop of the ingress alone, from the constructor on.

    Args:
        handle: Its engine deployment.
        knobs: The model's knobs, as they are now.
        progress: What to tell the clients that wait.
        clock: Seconds, as `time.perf_counter` gives them.
        on_cold: Called when a replica is needed and there is none.
    """

    def __init__(
        self,
        model: ModelSettings,
        handle: DeploymentHandle,
        knobs: Callable[[], Knobs],
        progress: ProgressReader,
        clock: Callable[[], float] = time.perf_counter,
        on_cold: Callable[[], None] = lambda: None,
    ) -> None:
        self.replicas = replica_set(model.deployment_name)
        self._model = model.name
        self._limit = model.max_ongoing_requests
        self._room = room_for_held(model)
        self._batch = model.max_num_seqs
        self._knobs = knobs
        self._progress = progress
        self._on_cold = on_cold
        self._clock = clock
        self._queue = HoldQueue()
        self.cold = False
        """Whether at some time since the queue was last empty there was no replica."""
        self._wake = Wake(model.name, handle, self._needs_replica, self._fail_all)
        self.replicas.notify(self._release)

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def body_bytes(self) -> int:
        """Bytes of the bodies of the requests held."""
        return sum(held.body_bytes for held in self._queue.all())

    def oldest_s(self) -> float:
        """How long the request held longest has been held, in seconds; 0 if there is none."""
        now = self._clock()
        return max((now - held.since for held in self._queue.all()), default=0.0)

    def newest_s(self) -> float:
        """How long ago the last of the requests held came, in seconds; 0 if there is none."""
        now = self._clock()
        return min((now - held.since for held in self._queue.all()), default=0.0)

    async def wait(
        self,
        request: EngineRequest,
        prompt_tokens: int,
        prefill_budget_s: float,
        again: bool,
        identity: str | None = None,
    ) -> Slot:
        """Hold `request` until a replica can take it; see `Admission.take`."""
        knobs = self._knobs()
        if identity is not None and not self.replicas.may_continue(identity):
            raise replaced(self._model)
        if not again:
            if not self.cold and len(self.replicas):
                raise replicas_busy(self._model, self._limit)
            if len(self._queue) >= knobs.max_held_requests:
                raise too_many_held(
                    self._model, len(self._queue), knobs.max_held_requests, self._progress.current
                )
        future: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        now, size = self._clock(), request.body_bytes
        held = HeldRequest(
            now, size, prompt_tokens, prefill_budget_s, request.prefix, again, identity, future
        )
        self._enter(held)
        try:
            await self._until_released(request, held, knobs)
            return held.slot.result()
        except BaseException:
            # The request got a slot and was cancelled at the same moment.
            if held.slot.done() and held.slot.exception() is None:
                self.replicas.release(held.slot.result())
            raise
        finally:
            self._leave(held)
            if request.state.ttft_s is None:  # later it is a pause within a stream, and no part of the TTFT
                request.state.queued_s += self._clock() - held.since

    async def _until_released(self, request: EngineRequest, held: HeldRequest, knobs: Knobs) -> None:
        """Return when `held` has its slot; meanwhile tell its client, and mind the deadline."""
        deadline = held.since + knobs.cold_wait_timeout_s
        tell_at = held.since + knobs.keep_alive_interval_s
        while not held.slot.done():
            now = self._clock()
            if now >= deadline:
                raise waited_too_long(self._model, knobs.cold_wait_timeout_s, self._progress.current)
            if now >= tell_at:
                tell_at = now + knobs.keep_alive_interval_s
                if request.state.tell_wait is not None:
                    seen = self._progress.current
                    wait = ColdWait(self._model, seen.phase, seen.eta_s, now - held.since)
                    await request.state.tell_wait(wait)
            # At least one turn of the event loop, however short the interval.
            await asyncio.wait((held.slot,), timeout=max(0.0, min(deadline, tell_at) - self._clock()))

    def _enter(self, held: HeldRequest) -> None:
        self._queue.enter(held)
        self.replicas.awaited = True
        self._progress.start()
        self._wake_if_needed()

    def _leave(self, held: HeldRequest) -> None:
        self._queue.leave(held)
        if not self._queue:
            self.replicas.awaited = self.cold = False
            self._progress.stop()
            if not len(self.replicas):
                # With a replica, Ray has answered and the wake is about to end by itself.
                self._wake.stop()

    def _needs_replica(self) -> bool:
        return bool(self._queue) and not len(self.replicas)

    def _wake_if_needed(self) -> None:
        if self._needs_replica():
            if not self.cold:
                self._on_cold()
            self.cold = True
            self._wake.start()

    def _release(self) -> None:
        """Give the requests at the front a slot each, as far as there is room."""
        limit = self._room if self.cold else self._limit
        for held in self._queue.leaving():
            slot = self.replicas.take(
                limit, held.prompt_tokens, held.prefill_budget_s, self._batch, held.prefix, held.identity
            )
            if slot is not None:
                self._leave(held)
                held.slot.set_result(slot)
            elif held.identity is None:
                break
            elif not self.replicas.may_continue(held.identity):
                self._leave(held)
                held.slot.set_exception(replaced(self._model))
        self._wake_if_needed()
        if not self._queue and not len(self.replicas):
            self._wake.stop()

    def _fail_all(self) -> None:
        for held in self._queue.all():
            self._leave(held)
            held.slot.set_exception(cannot_start(self._model))


def room_for_held(model: ModelSettings) -> int:
    """Requests in flight on one replica up to which held ones are released to it.

    It follows from the settings, as the engine's batch does. A request of several sequences counts as one;
    what then exceeds the batch waits in the engine's queue.
    """
    return min(model.max_ongoing_requests, model.max_num_seqs + math.ceil(_AHEAD_SHARE * model.max_num_seqs))
