"""The queue for a cold start: requests that wait in an ingress replica until an engine has room."""

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from ray.serve.handle import DeploymentHandle

from serve_app.api.engine_client import ColdWait, EngineRequest
from serve_app.api.request_trace import UNTRACED, Stage
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
from serve_app.ingress.request_stages import end_queue
from serve_app.settings.knobs import Knobs
from serve_app.settings.tree import ModelSettings
from serve_app.wire.spans import QUEUE

# When a sequence ends, the next queued request needs 5 to 10 ms to reach the engine: a few steps. The batch
# would have gaps in these steps. So an eighth of a batch waits in the engine. It fills the gaps if answers
# have at least a few dozen tokens, and commits few requests to one replica.
_AHEAD_SHARE = 1 / 8
_PHASE_S = 1.0
"""How often the phase of a cold start is noted in a trace. It is read as often."""


@dataclass(slots=True, eq=False)
class QueuedRequest:
    """One request in the queue."""

    since: float
    """When it was queued, in seconds of the caller's clock."""
    request: EngineRequest
    prompt_tokens: int
    """The estimate at admission."""
    prefill_budget_s: float
    """How long it may wait for prefill on a replica; see `ReplicaSet.take`."""
    retry: bool
    """Whether it has lost a replica."""
    identity: str | None
    """The model that began its answer; None for an answer that has not begun."""
    reservation: asyncio.Future[Reservation]
    """Becomes the request's reservation on a replica."""


@dataclass(slots=True)
class WaitingLine:
    """First come, first served, but requests that have lost a replica go first: they arrived earlier."""

    _retries: dict[QueuedRequest, None] = field(default_factory=dict)
    _newcomers: dict[QueuedRequest, None] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._retries) + len(self._newcomers)

    def enter(self, queued: QueuedRequest) -> None:
        """Add `queued` at the end of its kind."""
        self._line(queued)[queued] = None

    def leave(self, queued: QueuedRequest) -> None:
        """Remove `queued`, if it is still in the line."""
        self._line(queued).pop(queued, None)

    def candidates(self) -> Iterator[QueuedRequest]:
        """Yield the requests that may get a reservation now: those that lost a replica, then newcomers.

        A request that lost a replica may need one model, so the next of its kind can overtake it. No newcomer
        overtakes another: each is yielded only after the one before has left the line.
        """
        yield from list(self._retries)
        while self._newcomers:
            yield next(iter(self._newcomers))

    def all(self) -> list[QueuedRequest]:
        """Return every request, in the order of the line."""
        return [*self._retries, *self._newcomers]

    def _line(self, queued: QueuedRequest) -> dict[QueuedRequest, None]:
        return self._retries if queued.retry else self._newcomers


class ColdQueue:
    """A queue for a model without a replica, bounded in number and time. First come, first served.

    While requests are queued and there is no replica, the queue asks Ray for one. Then requests leave as fast
    as the replicas' batches have room. The others stay, because replicas start seconds apart and a queued
    request goes to the first with room. Until the queue is empty, newcomers join its end.

    If the model has replicas, a request is queued only if it has lost a replica and all others are full.

    Call it, the constructor included, only in the event loop of the ingress.

    Args:
        handle: The engine deployment.
        knobs: Returns the model's present knobs.
        progress: The progress that queued clients are told.
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
        """Whether the model was without a replica at some time since the queue was last empty."""
        self._wake = Wake(model.name, handle, self._needs_replica, self._fail_all)
        self.replicas.notify(self._release)

    def __len__(self) -> int:
        return len(self._line)

    @property
    def body_bytes(self) -> int:
        """The size of the bodies of all queued requests."""
        return sum(queued.request.body_bytes for queued in self._line.all())

    def oldest_s(self) -> float:
        """Return the seconds for which the oldest request has been queued; 0 if there is none."""
        now = self._clock()
        return max((now - queued.since for queued in self._line.all()), default=0.0)

    def newest_s(self) -> float:
        """Return the seconds for which the newest request has been queued; 0 if there is none."""
        now = self._clock()
        return min((now - queued.since for queued in self._line.all()), default=0.0)

    def traces(self, most: int) -> list[str]:
        """Return the `traceparent` of at most `most` queued requests that are traced, the oldest first."""
        requests = (queued.request for queued in self._line.all())
        traced = (each.trace for each in requests if each.trace and each.state.trace is not UNTRACED)
        return [trace.traceparent for trace in islice(traced, most)]

    async def wait(
        self,
        request: EngineRequest,
        prompt_tokens: int,
        prefill_budget_s: float,
        retry: bool,
        identity: str | None = None,
    ) -> Reservation:
        """Queue `request` until a replica can take it. `Admission.take` explains arguments and errors."""
        knobs = self._knobs()
        if identity is not None and not self.replicas.may_continue(identity):
            raise replaced(self._model)
        if not retry:
            if not self.cold and len(self.replicas):
                raise replicas_busy(self._model, self._limit)
            if len(self) >= knobs.max_held_requests:
                raise queue_is_full(self._model, len(self), knobs.max_held_requests, self._progress.current)
        future: asyncio.Future[Reservation] = asyncio.get_running_loop().create_future()
        now = self._clock()
        queued = QueuedRequest(now, request, prompt_tokens, prefill_budget_s, retry, identity, future)
        stage = request.state.trace.begin(QUEUE)
        self._enter(queued)
        cold = self.cold
        try:
            await self._until_released(queued, knobs, stage)
            end_queue(stage, future.result(), cold=cold)
            return future.result()
        except BaseException as error:
            end_queue(stage, error)
            # The request got a reservation and was cancelled at the same moment.
            if future.done() and future.exception() is None:
                self.replicas.release(future.result())
            raise
        finally:
            self._leave(queued)
            if request.state.ttft_s is None:  # else it is a pause within a stream, and no part of the TTFT
                request.state.queued_s += self._clock() - queued.since

    async def _until_released(self, queued: QueuedRequest, knobs: Knobs, stage: Stage) -> None:
        """Wait until `queued` has its reservation. Tell its client the progress, and keep the deadline."""
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
            due = min(deadline, tell_at)
            if stage.recorded:
                stage.note_phase(self._progress.current.phase)
                due = min(due, now + _PHASE_S)
            # Not below 0: `asyncio.wait` gives the event loop at least one turn.
            timeout_s = max(0.0, due - self._clock())
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
                # With a replica, Ray has answered, and the wake ends by itself.
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
        """Give requests reservations, from the front of the line, as far as there is room."""
        limit = self._release_limit if self.cold else self._limit
        for queued in self._line.candidates():
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
    """Return how many requests one replica may have in flight while queued requests are released to it.

    A request of several sequences counts as one. Sequences beyond the batch wait in the engine's queue.
    """
    return min(model.max_ongoing_requests, model.max_num_seqs + math.ceil(_AHEAD_SHARE * model.max_num_seqs))
