"""Admission: a slot on an engine replica for each request, at once where one has room."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from serve_app.api.engine_client import GPU_OPERATIONS, EngineRequest
from serve_app.ingress.replica_choice import Replica, Slot
from serve_app.settings.knobs import Knobs
from serve_app.settings.tree import ModelSettings

if TYPE_CHECKING:  # a replay imports this module, and needs no Ray
    from serve_app.ingress.held_requests import HeldRequests

BYTES_PER_TOKEN = 4
"""English text has about four bytes per token. The ratio is not learned: the usage that would tell it is in
the answer, which the ingress does not parse, and a ratio wrong for all replicas alike changes few picks."""
MOST_PROMPT_TOKENS = 32_768
"""The bound on a prompt where a model's context length is not set. An image may be megabytes of a body and a
thousand tokens: unbounded, it would keep every other request away from its replica until it is answered."""
PREFILL_BUDGET_SHARE = 0.8
"""The share of the TTFT target that a request may be expected to wait for prefill, its own included. The last
fifth is for what the expectation does not know: bytes tell tokens to some 20 %, and the step under way has to
end."""


class Admission:
    """Finds slots for the requests of one model.

    Args:
        held: Holds the requests that no replica can take now.
        knobs: The model's knobs, as they are now.
    """

    def __init__(self, model: ModelSettings, held: HeldRequests, knobs: Callable[[], Knobs]) -> None:
        self.held = held
        self.replicas = held.replicas
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
    ) -> Slot:
        """A slot on a replica for `request`, which the caller gives back with `replicas.release`.

        Args:
            request: Waits if there is no replica, or others wait for one. The time before its first token
                is added to its `queued_s`.
            again: Whether it had a replica before, and lost it. It then waits for room as well, before
                all others, and is not refused: it had been let in already.
            identity: The model that has begun the answer, for a stream that goes on: only its replicas can
                take the request. None for an answer that has not begun.
            refused: Replicas that have refused the request, and are passed over while another has room.

        Raises:
            ApiError: 429 if replicas are up and full, or as many requests as may be are held already;
                503 if no slot is found in time, the engines cannot start, or another model has replaced the
                one that has begun the answer.
        """
        prompt_tokens = estimated_prompt_tokens(request, self._most_prompt_tokens)
        knobs = self._knobs()
        grouped = request.wants_stream and knobs.prefill_groups
        budget_s = PREFILL_BUDGET_SHARE * knobs.ttft_target_s if grouped else 0.0
        if not self.held.cold:
            asked = (self._limit, prompt_tokens, budget_s, self._batch, request.prefix, identity)
            slot = self.replicas.take(*asked, refused)
            if slot is None and refused:
                slot = self.replicas.take(*asked)
            if slot is not None:
                return slot
        return await self.held.wait(request, prompt_tokens, budget_s, again, identity)

    def is_draining_too_long(self, replica: Replica) -> bool:
        """Whether a replica has drained for so long that streams had better leave it."""
        after_s = self._knobs().drain_move_after_s
        if replica.unlisted_at is None or after_s is None:
            return False
        return self.replicas.clock() - replica.unlisted_at >= after_s

    def take_for_move(self, request: EngineRequest, delivered_tokens: int, identity: str) -> Slot | None:
        """A slot for a stream whose replica drains, where it would run at once; None if there is none.

        Args:
            request: Its body may have been released.
            delivered_tokens: Those generated so far, which the next engine prefills behind the prompt.
            identity: The model that has begun the answer.
        """
        tokens = estimated_prompt_tokens(request, self._most_prompt_tokens) + delivered_tokens
        limit = min(self._limit, self._batch)
        return self.replicas.take(limit, min(tokens, self._most_prompt_tokens), identity=identity)


def estimated_prompt_tokens(request: EngineRequest, most: int) -> int:
    """The prompt tokens that `request` asks an engine to prefill, at most `most`; 0 for tokenizing."""
    if request.operation not in GPU_OPERATIONS:
        return 0
    return min(request.body_bytes // BYTES_PER_TOKEN, most)
