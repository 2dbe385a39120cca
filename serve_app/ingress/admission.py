"""Admission: a reservation on an engine replica for each request, at once where one has room."""

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
"""The bound on a prompt where a model's context length is not set. An image may be megabytes of a body and a
thousand tokens: unbounded, it would keep every other request away from its replica until it is answered."""
PREFILL_BUDGET_SHARE = 0.8
"""The share of the TTFT target that a request may be expected to wait for prefill, its own included. The last
fifth is for what the expectation does not know: bytes tell tokens to some 20 %, and the step under way has to
end."""


class Admission:
    """Finds reservations for the requests of one model.

    Args:
        queue: Takes the requests that no replica can take now.
        knobs: The model's knobs, as they are now.
    """

    def __init__(self, model: ModelSettings, queue: ColdQueue, knobs: Callable[[], Knobs]) -> None:
        self.queue = queue
        self.replicas = queue.replicas
        self._limit = model.max_ongoing_requests
        self._batch = model.max_num_seqs
        self._most_prompt_tokens = model.max_model_len or MOST_PROMPT_TOKENS
        self._knobs = knobs

    async def take(
        self,
        request: EngineRequest,
        *,
        again: bool = False,
        identity: str | None = None,
        refused: Collection[Replica] = (),
    ) -> Reservation:
        """A reservation on a replica for `request`, which the caller gives back with `replicas.release`.

        Args:
            request: Waits if there is no replica, or others wait for one. The time before its first token
                is added to its `queued_s`.
            again: Whether it had a replica before, and lost it. It then waits for room as well, before
                all others, and is not refused: it had been let in already.
            identity: The model that has begun the answer, for a stream that goes on: only its replicas can
                take the request. None for an answer that has not begun.
            refused: Replicas that have refused the request, and are passed over while another has room.

        Raises:
            ApiError: 429 if replicas are up and full, or as many requests as may be are queued already;
                503 if no replica has room in time, the engines cannot start, or another model has replaced
                the one that has begun the answer.
        """
        prompt_tokens = self._prompt_tokens(request)
        knobs = self._knobs()
        grouped = request.wants_stream and knobs.prefill_groups
        budget_s = PREFILL_BUDGET_SHARE * knobs.ttft_target_s if grouped else 0.0
        if not self.queue.cold:
            asked = (self._limit, prompt_tokens, budget_s, self._batch, request.prefix, identity)
            reservation = self.replicas.take(*asked, refused)
            if reservation is None and refused:
                reservation = self.replicas.take(*asked)
            if reservation is not None:
                return reservation
        return await self.queue.wait(request, prompt_tokens, budget_s, again, identity)

    def is_draining_too_long(self, replica: Replica) -> bool:
        """Whether a replica has drained for so long that streams should migrate from it."""
        after_s = self._knobs().drain_move_after_s
        if replica.unlisted_at is None or after_s is None:
            return False
        return self.replicas.clock() - replica.unlisted_at >= after_s

    def take_for_move(
        self, request: EngineRequest, delivered_tokens: int, identity: str
    ) -> Reservation | None:
        """A reservation for a stream whose replica drains, where it would run at once; None if there is none.

        Args:
            request: Its body may have been released.
            delivered_tokens: Those generated so far, which the next engine prefills behind the prompt.
            identity: The model that has begun the answer.
        """
        tokens = self._prompt_tokens(request) + delivered_tokens
        limit = min(self._limit, self._batch)
        return self.replicas.take(limit, min(tokens, self._most_prompt_tokens), identity=identity)

    def _prompt_tokens(self, request: EngineRequest) -> int:
        ratio = self.replicas.prefixes.bytes_per_token
        return estimated_prompt_tokens(request, ratio, self._most_prompt_tokens)


def estimated_prompt_tokens(request: EngineRequest, bytes_per_token: float, most: int) -> int:
    """The prompt tokens that `request` asks an engine to prefill, at most `most`; 0 for tokenizing."""
    if request.operation not in GPU_OPERATIONS:
        return 0
    return min(int(request.body_bytes / bytes_per_token), most)
