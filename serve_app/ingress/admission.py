"""Admission: find a reservation on an engine replica for each request, or queue the request."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from serve_app.api.engine_client import GPU_OPERATIONS, EngineRequest
from serve_app.ingress.replica_choice import Replica, Reservation
from serve_app.settings.knobs import Knobs
from serve_app.settings.tree import ModelSettings

if TYPE_CHECKING:  # a replay imports this module, and needs no Ray
    from serve_app.ingress.cold_queue import ColdQueue

MOST_PROMPT_TOKENS = 32_768
"""The bound on an estimated prompt where `max_model_len` is not set. An image of a thousand tokens may take
megabytes. Without a bound, its estimate would keep all other requests away from its replica."""
PREFILL_BUDGET_SHARE = 0.8
"""The share of the TTFT target that a request may wait for prefill, its own included. The last fifth is a
margin: the estimate of tokens from bytes is off by some 20 %, and the engine's current step has to end."""


class Admission:
    """Finds reservations for the requests of one model.

    Args:
        queue: Takes the requests that no replica can take now.
        knobs: Returns the model's present knobs.
    """

    def __init__(self, model: ModelSettings, queue: ColdQueue, knobs: Callable[[], Knobs]) -> None:
        self.queue = queue
        self.replicas = queue.replicas
        self._model = model.name
        self._limit = model.max_ongoing_requests
        self._batch = model.max_num_seqs
        self._most_prompt_tokens = model.max_model_len or MOST_PROMPT_TOKENS
        self._knobs = knobs

    async def take(
        self,
        request: EngineRequest,
        *,
        retry: bool = False,
        identity: str | None = None,
        refused: Collection[Replica] = (),
    ) -> Reservation:
        """Return a reservation on a replica for `request`. The caller gives it back with `replicas.release`.

        Args:
            request: It is queued if there is no replica, or if other requests are queued. The time in the
                queue before its first token is added to its `queued_s`.
            retry: Whether the request has lost a replica. Such a request is queued even if all replicas are
                full. It goes before all others, and the bound of the queue does not refuse it.
            identity: The model that began the answer: only its replicas can continue a stream. None for an
                answer that has not begun.
            refused: Replicas that have refused the request. They come last.

        Raises:
            ApiError: 429 if replicas are up and full, or if the queue is full. 503 if no replica has room in
                time, if the engines cannot start, or if the model that began the answer has been replaced.
        """
        prompt_tokens = self._prompt_tokens(request)
        knobs = self._knobs()
        request.state.trace.note_model(self._model, knobs.ttft_target_s)
        grouped = request.wants_stream and knobs.prefill_groups
        budget_s = PREFILL_BUDGET_SHARE * knobs.ttft_target_s if grouped else 0.0
        if not self.queue.cold:
            asked = (self._limit, prompt_tokens, budget_s, self._batch, request.prefix, identity)
            reservation = self.replicas.take(*asked, refused)
            if reservation is None and refused:
                reservation = self.replicas.take(*asked)
            if reservation is not None:
                return reservation
        return await self.queue.wait(request, prompt_tokens, budget_s, retry, identity)

    def is_draining_too_long(self, replica: Replica) -> bool:
        """Whether `replica` has drained for `drain_move_after_s`: its streams should migrate."""
        after_s = self._knobs().drain_move_after_s
        if replica.unlisted_at is None or after_s is None:
            return False
        return self.replicas.clock() - replica.unlisted_at >= after_s

    def take_for_move(
        self, request: EngineRequest, delivered_tokens: int, identity: str
    ) -> Reservation | None:
        """Return a reservation for a stream whose replica drains; None if no other could run it at once.

        Args:
            request: Its body may have been released.
            delivered_tokens: The number of delivered tokens. The next engine prefills them after the prompt.
            identity: The model that began the answer.
        """
        tokens = self._prompt_tokens(request) + delivered_tokens
        limit = min(self._limit, self._batch)
        return self.replicas.take(limit, min(tokens, self._most_prompt_tokens), identity=identity)

    def _prompt_tokens(self, request: EngineRequest) -> int:
        ratio = self.replicas.prefixes.bytes_per_token
        return estimated_prompt_tokens(request, ratio, self._most_prompt_tokens)


def estimated_prompt_tokens(request: EngineRequest, bytes_per_token: float, most: int) -> int:
    """Return the prompt tokens that an engine prefills for `request`, at most `most`; 0 for tokenizing."""
    if request.operation not in GPU_OPERATIONS:
        return 0
    return min(int(request.body_bytes / bytes_per_token), most)
