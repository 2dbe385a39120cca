"""The queue for a cold start: requests that wait in an ingress replica until an engine has room."""

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ray.serve.handle import DeploymentHandle

from serve_app.api.engine_client import ColdWait, EngineRequest
from serve_app.ingress.cold_start_progress import ProgressReader
from serve_app.ingress.ray_router import Wake
from serve_app.ingress.refusals import (
    cannot_start,
    queue_is_full,
    replaced,
    replicas_busy,
    waited_too_long,
)
from serve_app.ingress.replica_choice import Reservation
from serve_app.ingress.replica_set import replica_set
from serve_app.settings.knobs import Knobs
from serve_app.settings.tree import ModelSettings

# Between the end of a sequence and the arrival of the next queued request in the engine pass 5 to 10 ms, a
# step or a few. With no more sent than the batch takes, it would run with gaps. An eighth of it waiting in
# the engine fills them for answers down to a few dozen tokens, and is little to commit to one replica.
_AHEAD_SHARE = 1 / 8


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """One request in the queue."""

    since: float
    """When it came, in seconds of the caller's clock."""
    request: EngineRequest
    prompt_tokens: int
    """As estimated at its admission."""
    prefill_budget_s: float
    """How long it may wait for prefill once it is on a replica; see `ReplicaSet.take`."""
    again: bool
    """Whether it had a replica before, and lost it."""
    identity: str | None
    """The model that has begun its answer, which alone can go on with it; None for an answer not begun."""
    reservation: asyncio.Future[Reservation]
    """Becomes the request's reservation on a replica."""


@dataclass(slots=True)
class WaitingLine:
    """First come, first served; requests that had a replica and lost it come before all others.

    Those were let in before every request that is still here.
    """

    _again: dict[QueuedRequest, None] = field(default_factory=dict)
    _newcomers: dict[QueuedRequest, None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._again) + len(self._newcomers)

    def enter(self, queued: QueuedRequest) -> None:
        """Put `queued` behind those of its kind."""
        self._line(queued)[queued] = None

    def leave(self, queued: QueuedRequest) -> None:
        """Take `queued` out, if it is still in."""
        self._line(queued).pop(queued, None)

    def leaving(self) -> Iterator[QueuedRequest]:
        """The requests that had a replica, then the first of the others, and the next once that has left.

        A request that had a replica may wait for one model only, and the next of them can go before it.
        Newcomers can go anywhere, and none overtakes another.
        """
        yield from list(self._again)
        while self._newcomers:
            yield next(iter(self._newcomers))

    def all(self) -> list[QueuedRequest]:
        """Every request, in the order in which they leave."""
        return [*self._again, *self._newcomers]

    def _line(self, queued: QueuedRequest) -> dict[QueuedRequest, None]:
        return self._again if queued.again else self._newcomers


class ColdQueue:
    """A queue for a model without a replica: bounded in number and in time, first come, first served.

    While requests are in it and there is no replica, Ray is asked for one. Once there is one, requests leave
    as fast as replicas have room for them in their batches. The others stay: replicas come up seconds apart,
    and a request that waits here goes to whichever has room first. Until the last one has left, newcomers
    join the end: to overtake would be unfair, and would fill the engines' queues all the same.

    For a model with replicas, only requests are queued that lost theirs while all others are full.

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
        self._release_limit = release_limit(model)
        self._batch = model.max_num_seqs
        self._knobs = knobs
        self._progress = progress
        self._on_cold = on_cold
        self._clock = clock
        self._line = WaitingLine()
        self.cold = False
        """Whether at some time since the queue was last empty there was no replica."""
        self._wake = Wake(model.name, handle, self._needs_replica, self._fail_all)
        self.replicas.notify(self._release)

    def __len__(self) -> int:
        return len(self._line)

    @property
    def body_bytes(self) -> int:
        """Bytes of the bodies of the requests queued."""
        return sum(queued.request.body_bytes for queued in self._line.all())

    def oldest_s(self) -> float:
        """How long ago the first of the requests queued came, in seconds; 0 if there is none."""
        now = self._clock()
        return max((now - queued.since for queued in self._line.all()), default=0.0)

    def newest_s(self) -> float:
        """How long ago the last of the requests queued came, in seconds; 0 if there is none."""
        now = self._clock()
        return min((now - queued.since for queued in self._line.all()), default=0.0)

    async def wait(
        self,
        request: EngineRequest,
        prompt_tokens: int,
        prefill_budget_s: float,
        again: bool,
        identity: str | None = None,
    ) -> Reservation:
        """Queue `request` until a replica can take it; see `Admission.take`."""
        knobs = self._knobs()
        if identity is not None and not self.replicas.may_continue(identity):
            raise replaced(self._model)
        if not again:
            if not self.cold and len(self.replicas):
                raise replicas_busy(self._model, self._limit)
            if len(self) >= knobs.max_held_requests:
                raise queue_is_full(self._model, len(self), knobs.max_held_requests, self._progress.current)
        future: asyncio.Future[Reservation] = asyncio.get_running_loop().create_future()
        now = self._clock()
        queued = QueuedRequest(now, request, prompt_tokens, prefill_budget_s, again, identity, future)
        self._enter(queued)
        try:
            await self._until_released(queued, knobs)
            return future.result()
        except BaseException:
            # The request got a reservation and was cancelled at the same moment.
            if future.done() and future.exception() is None:
                self.replicas.release(future.result())
            raise
        finally:
            self._leave(queued)
            if request.state.ttft_s is None:  # later it is a pause within a stream, and no part of the TTFT
                request.state.queued_s += self._clock() - queued.since

    async def _until_released(self, queued: QueuedRequest, knobs: Knobs) -> None:
        """Return when `queued` has its reservation; meanwhile tell its client, and mind the deadline."""
        deadline = queued.since + knobs.cold_wait_timeout_s
        tell_at = queued.since + knobs.keep_alive_interval_s
        while not queued.reservation.done():
            now = self._clock()
            if now >= deadline:
                raise waited_too_long(self._model, knobs.cold_wait_timeout_s, self._progress.current)
            if now >= tell_at:
                tell_at = now + knobs.keep_alive_interval_s
                if (tell_wait := queued.request.state.tell_wait) is not None:
                    seen = self._progress.current
                    await tell_wait(ColdWait(self._model, seen.phase, seen.eta_s, now - queued.since))
            # At least one turn of the event loop, however short the interval.
            timeout_s = max(0.0, min(deadline, tell_at) - self._clock())
            await asyncio.wait((queued.reservation,), timeout=timeout_s)

    def _enter(self, queued: QueuedRequest) -> None:
        self._line.enter(queued)
        self.replicas.awaited = True
        self._progress.start()
        self._wake_if_needed()

    def _leave(self, queued: QueuedRequest) -> None:
        self._line.leave(queued)
        if not self._line:
            self.replicas.awaited = self.cold = False
            self._progress.stop()
            if not len(self.replicas):
                # With a replica, Ray has answered and the wake is about to end by itself.
                self._wake.stop()

    def _needs_replica(self) -> bool:
        return bool(self._line) and not len(self.replicas)

    def _wake_if_needed(self) -> None:
        if self._needs_replica():
            if not self.cold:
                self._on_cold()
            self.cold = True
            self._wake.start()

    def _release(self) -> None:
        """Give the requests at the front a reservation each, as far as there is room."""
        limit = self._release_limit if self.cold else self._limit
        for queued in self._line.leaving():
            tokens, budget_s, prefix = queued.prompt_tokens, queued.prefill_budget_s, queued.request.prefix
            reservation = self.replicas.take(limit, tokens, budget_s, self._batch, prefix, queued.identity)
            if reservation is not None:
                self._leave(queued)
                queued.reservation.set_result(reservation)
            elif queued.identity is None:
                break
            elif not self.replicas.may_continue(queued.identity):
                self._leave(queued)
                queued.reservation.set_exception(replaced(self._model))
        self._wake_if_needed()
        if not self._line and not len(self.replicas):
            self._wake.stop()

    def _fail_all(self) -> None:
        for queued in self._line.all():
            self._leave(queued)
            queued.reservation.set_exception(cannot_start(self._model))


def release_limit(model: ModelSettings) -> int:
    """Requests in flight on one replica up to which queued ones are released to it.

    It follows from the settings, as the engine's batch does. A request of several sequences counts as one;
    what then exceeds the batch waits in the engine's queue.
    """
    return min(model.max_ongoing_requests, model.max_num_seqs + math.ceil(_AHEAD_SHARE * model.max_num_seqs))
