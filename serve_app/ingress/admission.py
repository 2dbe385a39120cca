"""Admission: find a reservation on an engine replica for each request, or queue the request."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from functools import partial

from ray.serve.handle import DeploymentHandle

from serve_app.api.engine_client import GPU_OPERATIONS, EngineRequest
from serve_app.api.errors import ApiError
from serve_app.api.trace import Stage
from serve_app.ingress.cold_start_progress import DEFAULT_RETRY_AFTER_S, ColdStartProgress, ProgressReader
from serve_app.ingress.prefix_index import MOST_PROMPT_TOKENS
from serve_app.ingress.ray_router import Wakes
from serve_app.ingress.replica import Replica, Reservation
from serve_app.ingress.replica_choice import PREFILL_BUDGET_SHARE
from serve_app.ingress.replica_set import ReplicaSet
from serve_app.ingress.waiting import KeepAlive, Pending, RequestQueue, end_queue, wake
from serve_app.settings.knobs import Knobs
from serve_app.settings.tree import ModelSettings
from serve_app.wire.spans import QUEUE

# When a sequence ends, the next queued request needs 5 to 10 ms to reach the engine: a few steps. The batch
# would have gaps in these steps. So an eighth of a batch waits in the engine. It fills the gaps if answers
# have at least a few dozen tokens, and commits few requests to one replica.
_AHEAD_SHARE = 1 / 8
_REPLACED = "the weights that began the answer have been replaced."
_LOST_RETRY_AFTER_S = 5
_BUSY_RETRY_AFTER_S = 1
_NO_REPLICA_ASKED_FOR = ("requested", "busy", "unknown")
_MOVING_SHARE = 0.5
"""All streams look for another replica within this share of the notice of a node's end. In the rest, those
that have found no room try again."""
_PHASE_S = 1.0
"""How often the phase of a cold start is noted in a trace. It is read as often."""


def release_limit(model: ModelSettings) -> int:
    """Return how many requests one replica may have in flight while queued requests are released to it.

    A request of several sequences counts as one. Sequences beyond the batch wait in the engine's queue.
    """
    return min(model.max_ongoing_requests, model.max_num_seqs + math.ceil(_AHEAD_SHARE * model.max_num_seqs))


def unavailable(
    model: str, why: str, retry_after_s: int = _LOST_RETRY_AFTER_S, code: str = "model_unavailable"
) -> ApiError:
    """Return a 503: no replica of the model can take the request."""
    return _refusal(503, model, why, code, retry_after_s)


def _refusal(status: int, model: str, why: str, code: str, retry_after_s: int) -> ApiError:
    return ApiError(status, f"Model {model!r}: {why}", code=code, headers={"Retry-After": f"{retry_after_s}"})


class Admission:
    """Finds reservations for the requests of one model.

    While the model has no replica, requests are queued, bounded in number and time, and Ray is asked for a
    replica. Then they leave as fast as the replicas' batches have room. The others stay, because replicas
    start seconds apart and a queued request goes to the first with room. Until the queue is empty, newcomers
    join its end. If all replicas are full, a request is queued only if it has lost a replica, or if its key
    has less than its equal share of the places.

    Requests of the lane `background` are queued until a replica has a free place in its batch and no other
    request waits. They ask Ray for no replica: the policy alone decides whether they start one. They take no
    place from others: limits of other lanes do not count them, because an engine pauses them within a step.

    Call it, the constructor included, only in the event loop of the ingress.

    Args:
        handle: The engine deployment; with variants, that of the first.
        knobs: Returns the model's present knobs.
        progress: The progress that queued clients are told.
        clock: Seconds, as `time.perf_counter` gives them.
        on_cold: Called when a replica is needed, not only by the lane `background`, and there is none.
        others: The engine deployments of the other variants.
        queues: Returns whether new requests may wait in the queue. If not, they get 429.
    """

    def __init__(
        self,
        model: ModelSettings,
        replicas: ReplicaSet,
        handle: DeploymentHandle,
        knobs: Callable[[], Knobs],
        progress: ProgressReader,
        clock: Callable[[], float] = time.perf_counter,
        on_cold: Callable[[], None] = lambda: None,
        others: Sequence[DeploymentHandle] = (),
        queues: Callable[[], bool] = lambda: True,
    ) -> None:
        self._queues = queues
        self.queue = RequestQueue(clock)
        self.replicas = replicas
        self.cold = False
        """Whether the requests in the queue, other than those of the lane `background`, wait for a cold
        start: the model had no replica at some time since this part of the queue was last empty."""
        self._model = model.name
        self._limit = model.max_ongoing_requests
        self._release_limit = release_limit(model)
        self._batch = model.max_num_seqs
        self._most_prompt_tokens = model.max_model_len or MOST_PROMPT_TOKENS
        self._knobs = knobs
        self._progress = progress
        self._clock = clock
        self._on_cold = on_cold
        self.keep_alive = KeepAlive(model.name, lambda: knobs().keep_alive_interval_s, clock)
        self._wake = Wakes(model.name, (handle, *others), self._needs_replica, self._fail_all)
        replicas.on_change.append(self._release)
        self._zero_at = -math.inf
        """When the policy last wanted no replica, on the clock of the replicas."""

    async def take(
        self,
        request: EngineRequest,
        *,
        retry: bool = False,
        model_identity: str | None = None,
        refused: Collection[Replica] = (),
    ) -> Reservation:
        """Return a reservation on a replica for `request`. `attempt_at` gives it back.

        Args:
            request: The time in the queue before its first token is added to its `queued_s`, or to its
                `lost_s` if the last replica has just been lost.
            retry: Whether the request has lost a replica. Such a request is queued even if all replicas are
                full. It goes before all others, and the bound of the queue does not refuse it.
            model_identity: The model that began the answer: only its replicas can continue a stream. None for
                an answer that has not begun.
            refused: Replicas that have refused the request. They come last.

        Raises:
            ApiError: 429 if replicas are up and full and the key has its share, or if the queue is full. 503
                if no replica has room in time, if the engines cannot start, or if the model that began the
                answer has been replaced.
        """
        knobs = self._knobs()
        request.trace.note_model(self._model, knobs.ttft_target_s)
        if request.silent_since is None or model_identity is not None:
            self.keep_alive.begin(request)
        grouped = request.wants_stream and knobs.prefill_groups
        budget_s = PREFILL_BUDGET_SHARE * knobs.ttft_target_s if grouped else 0.0
        pending = Pending(request, self._prompt_tokens(request), budget_s, retry, model_identity)
        if not (len(self.queue) if request.is_background else self.cold):
            reservation = self._pick(pending, refused)
            if reservation is None and refused:
                reservation = self._pick(pending)
            if reservation is not None:
                return reservation
        self._check_queue(pending, knobs.max_held_requests if self._queues() else 0)
        return await self._wait(pending, knobs)

    def take_for_move(
        self, request: EngineRequest, delivered_tokens: int, model_identity: str
    ) -> Reservation | None:
        """Return a reservation for a stream whose replica drains; None if no other could run it at once.

        Args:
            request: Its body may have been released.
            delivered_tokens: The number of delivered tokens. The next engine prefills them after the prompt.
            model_identity: The model that began the answer.
        """
        return self.replicas.take(
            min(self._limit, self._batch),
            min(self._prompt_tokens(request) + delivered_tokens, self._most_prompt_tokens),
            model_identity=model_identity,
            background=request.is_background,
            adapter=request.adapter_name,
            key=request.caller.key,
        )

    def settle(self, request: EngineRequest) -> None:
        """Charge the key of a request that has ended with the tokens that engines computed for it."""
        if (charged := request.charged_tokens) is None:
            return
        counts = request.counts
        prompt = charged if counts.input is None else counts.input - (counts.cached or 0)
        self.queue.settle(request, prompt + (counts.output or 0))

    def lane_knob(self, request: EngineRequest) -> float | None:
        """Return the knob that `request` brings to its engine; see `Knobs.lane_knob`."""
        return self._knobs().lane_knob(request.caller.lane)

    @asynccontextmanager
    async def within_deadline(self, request: EngineRequest | None) -> AsyncIterator[None]:
        """Bound the time in which an engine begins the answer to a request of the lane `background`.

        Raises:
            ApiError: 503 after `background_wait_timeout_s`, because other lanes needed the engine.
        """
        if request is None or not request.is_background:
            yield
            return
        timeout_s = self._knobs().background_wait_timeout_s
        try:
            async with asyncio.timeout(max(0.0, timeout_s - request.waited_s)):
                yield
        except TimeoutError:
            raise self._timed_out("background_wait_timeout", timeout_s, self._progress.current) from None

    def should_move_streams(self, replica: Replica, remaining: Callable[[], float] = lambda: 1.0) -> bool:
        """Whether the streams of `replica` should migrate: it has drained long enough, or its node ends.

        `remaining` returns the part of the stream's longest answer that is not delivered yet, 0 to 1. If the
        node ends, streams move in the first half of the notice, those with the smallest part first.
        """
        if replica.ends_at is not None:
            left_s = replica.ends_at - self.replicas.clock()
            return left_s <= replica.notice_s * (1.0 - _MOVING_SHARE * remaining())
        after_s = self._knobs().drain_move_after_s
        if replica.unlisted_at is None or after_s is None:
            return False
        return self.replicas.clock() - replica.unlisted_at >= after_s

    def _prompt_tokens(self, request: EngineRequest) -> int:
        """Return the estimated prompt tokens that an engine prefills for `request`."""
        if request.operation not in GPU_OPERATIONS:
            return 0
        size = request.prompt_bytes
        return min(int(size / self.replicas.prefixes.bytes_per_token), self._most_prompt_tokens)

    def _pick(self, pending: Pending, refused: Collection[Replica] = ()) -> Reservation | None:
        request = pending.request
        released = self.cold or request.is_background
        return self.replicas.take(
            self._release_limit if released else self._limit,
            pending.prompt_tokens,
            pending.prefill_budget_s,
            self._batch,
            request.prefix,
            pending.model_identity,
            refused,
            request.is_background,
            request.adapter_name,
            request.caller.key,
        )

    def _check_queue(self, pending: Pending, bound: int) -> None:
        """Raise the ApiError of a request that may not be queued. A full queue may refuse another for it."""
        if self._is_replaced(pending):
            raise unavailable(self._model, _REPLACED)
        if pending.retry:
            return
        queued = self.queue.background if pending.background else self.queue.foreground
        full = not pending.background and not self.cold and len(self.replicas)
        if full and not self._is_below_share(pending.request.caller.key):
            limit = self._limit
            why = (
                f"every replica already has {limit} requests from this ingress replica "
                f"(max_ongoing_requests = {limit})."
            )
            raise _refusal(429, self._model, why, "queue_full", _BUSY_RETRY_AFTER_S)
        if queued >= bound:
            others = "others of the lane background" if pending.background else "others"
            why = (
                f"no replica can take the request yet, and this ingress replica already queues "
                f"{queued} {others} (max_held_requests = {bound})."
            )
            error = _refusal(429, self._model, why, "queue_full", self._progress.current.retry_after_s)
            refused = self.queue.refuse_for(pending, bound)
            if refused is pending:
                raise error
            self._leave(refused, error)

    def _is_replaced(self, pending: Pending) -> bool:
        """Whether another model runs in place of the model that began the answer."""
        begun = pending.model_identity
        return begun is not None and not self.replicas.may_continue(begun)

    def _is_below_share(self, key: str) -> bool:
        """Whether other keys have places, and `key` has less than its equal share, with its queued requests.

        Such a key waits for the next place, so no other key keeps it out. A key alone may use all places.
        """
        places = self.replicas.places
        keys = len(places) + (key not in places)
        own = places[key] + self.queue.newcomers(key)
        return keys > 1 and own * keys < self._limit * len(self.replicas)

    async def _wait(self, pending: Pending, knobs: Knobs) -> Reservation:
        request = pending.request
        stage = request.trace.begin(QUEUE)
        self.queue.enter(pending)
        self.replicas.awaited = True
        self._progress.start(self._refuse_after_rollout, self._note_zero)
        self._wake_if_needed()
        cold = self.cold
        lost_at = self.replicas.lost_at
        recovers = pending.retry or self.replicas.clock() - lost_at < knobs.cold_wait_timeout_s
        recovers &= not pending.background  # which waits for other lanes too, for hours
        try:
            reservation = await self._until_released(pending, knobs, stage)
            end_queue(stage, reservation, cold=cold)
            return reservation
        except BaseException as error:
            end_queue(stage, error)
            # The request got a reservation and was cancelled at the same moment.
            if isinstance(pending.result, Reservation):
                self.replicas.release(pending.result)
            raise
        finally:
            self._leave(pending)
            waited_s = self._clock() - pending.since
            if recovers and (pending.retry or self._zero_at < lost_at):
                request.lose(waited_s)
            elif request.ttft_s is None:  # else it is a pause within a stream, and no part of the TTFT
                request.queued_s += waited_s

    async def _until_released(self, pending: Pending, knobs: Knobs, stage: Stage) -> Reservation:
        """Wait for the reservation, and keep the deadline."""
        timeout = "background_wait_timeout" if pending.background else "cold_wait_timeout"
        timeout_s: float = getattr(knobs, f"{timeout}_s")
        request, deadline = pending.request, pending.since + timeout_s
        progress = partial(self._progress_of, pending)
        while pending.result is None:
            now, due = self._clock(), deadline
            if now >= deadline:
                raise self._timed_out(timeout, timeout_s, progress())
            if stage.recorded:
                stage.note_phase(progress().phase)
                due = min(due, now + _PHASE_S)
            pending.waiter = asyncio.get_running_loop().create_future()
            await self.keep_alive.wait(request, pending.waiter, progress, pending.since, due)
        if isinstance(pending.result, ApiError):
            raise pending.result
        return pending.result

    def _timed_out(self, timeout: str, timeout_s: float, progress: ColdStartProgress) -> ApiError:
        why = (
            f"no replica could take the request within {timeout_s:g} s "
            f"({timeout}_s = {timeout_s:g}); phase: {progress.phase}"
            f"{progress.reason and f' ({progress.reason})'}."
        )
        return _refusal(503, self._model, why, timeout, progress.retry_after_s)

    def _release(self) -> None:
        """Give requests reservations, from the front of the queue, as far as there is room."""
        for pending in self.queue.candidates():
            reservation = self._pick(pending)
            if reservation is not None:
                self._leave(pending, reservation)
                # A cached prompt costs its key nothing.
                share = self._knobs().standard_share
                self.queue.charge(pending, reservation.pending_prompt_tokens, share)
            elif pending.model_identity is not None and not self.replicas.may_continue(
                pending.model_identity
            ):
                self._leave(pending, unavailable(self._model, _REPLACED))
            elif not pending.retry or (pending.model_identity is None and not pending.background):
                break  # there is room for no other request either
        self._wake_if_needed()
        if not self.queue.foreground and not len(self.replicas):
            self._wake.stop()

    def _leave(self, pending: Pending, result: Reservation | ApiError | None = None) -> None:
        """Take a request out of the queue, with its reservation or error if it has any."""
        if self.queue.leave(pending):
            pending.result = result
            if pending.waiter is not None:
                wake(pending.waiter)
        if not self.queue.foreground:
            self.cold = False
            if not len(self.replicas):
                # With a replica, Ray has answered, and the wake ends by itself.
                self._wake.stop()
        if not len(self.queue):
            self.replicas.awaited = False
            self._progress.stop()

    def _progress_of(self, pending: Pending) -> ColdStartProgress:
        """Return the progress for a client. The lane `background` may have asked for no replica."""
        progress = self._progress.current
        if pending.background and progress.phase in _NO_REPLICA_ASKED_FOR:
            return ColdStartProgress("background", None)
        return progress

    def _note_zero(self) -> None:
        self._zero_at = self.replicas.clock()

    def _needs_replica(self) -> bool:
        return self.queue.foreground > 0 and not len(self.replicas)

    def _wake_if_needed(self) -> None:
        if self._needs_replica():
            if not self.cold:
                self._on_cold()
            self.cold = True
            self._wake.start()

    def _refuse_after_rollout(self, reason: str) -> None:
        if not self.replicas.listed():  # a listed replica may recover
            self._fail_all(f"no replica runs, and none can start before the next rollout, because {reason}")

    def _fail_all(self, why: str = "its engines cannot start; see /ready.") -> None:
        for pending in self.queue.requests():
            self._leave(pending, unavailable(self._model, why, DEFAULT_RETRY_AFTER_S))
