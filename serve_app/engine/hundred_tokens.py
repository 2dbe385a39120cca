"""The time to a request's hundredth token, seen in the step that makes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.v1.metrics.stats import IterationStats

HUNDRED = 100


class HundredTokens:
    """Follows requests from their first token to their hundredth without looking at each in every step.

    A sequence gains at most `most_a_step` tokens in a step, so one that lacks 99 need not be looked at for
    the next 98. Each request is therefore put down for the earliest step in which it may be due, and looked
    at then: once, where nothing preempts it and a step makes one token. With 256 requests running and one
    or two beginning, a step costs 1 µs, where looking at them all costs 10.

    Args:
        requests: vLLM's states of the requests it holds, by id; the very mapping it keeps.
        most_a_step: Tokens of one sequence in one step, more than one with speculative decoding.
    """

    def __init__(self, requests: Mapping[str, Any], most_a_step: int = 1) -> None:
        self._requests = requests
        self._most_a_step = most_a_step
        self._ring: list[list[tuple[str, Any]]] = [[] for _ in range(HUNDRED + 1)]
        """Requests by the step they are due in, modulo its length. Nobody lacks more tokens than that."""
        self._step = 0

    def begin(self, request_id: str, stats: Any) -> None:
        """Follow a request whose first token came with this step, before `note` is called for the step.

        `stats` are vLLM's figures of it, in which it goes on counting its tokens.
        """
        self._put(request_id, stats, HUNDRED - stats.num_generation_tokens)

    def note(self, iteration: IterationStats) -> list[float]:
        """Seconds from the arrival to the hundredth token, of each request that this step brought there.

        To be called once for every step that has results, after vLLM has counted its tokens.
        """
        slot = self._step % len(self._ring)
        due = self._ring[slot]
        reached: list[float] = []
        if due:
            self._ring[slot] = []
        for request_id, stats in due:
            lacking = HUNDRED - stats.num_generation_tokens
            if lacking <= 0:
                reached.append(iteration.iteration_timestamp - stats.arrival_time)
            elif self._runs(request_id, stats):
                self._put(request_id, stats, lacking)
        self._step += 1
        return reached

    def _put(self, request_id: str, stats: Any, lacking: int) -> None:
        steps = max(0, -(-lacking // self._most_a_step))
        self._ring[(self._step + steps) % len(self._ring)].append((request_id, stats))

    def _runs(self, request_id: str, stats: Any) -> bool:
        state = self._requests.get(request_id)
        return state is not None and state.stats is stats
