"""A request's first and hundredth token, found in the step that makes them.

vLLM's own figures of a request come with its end, and a generation may last for minutes.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from vllm.v1.metrics.stats import IterationStats

HUNDRED = 100


class FirstToken(NamedTuple):
    """Where the time to one request's first token went, in seconds."""

    queue_s: float
    """In the engine's queue."""
    prefill_s: float
    """From the first step that took the prompt to the token."""


class Reached(NamedTuple):
    """What requests reached with one step."""

    first_tokens: list[FirstToken]
    hundred_tokens_s: list[float]
    """Seconds from the arrival to the hundredth token."""


class Milestones:
    """Finds the requests that reach their first or hundredth token, each once.

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
        self._newest_ts = 0.0
        """The engine core's time of the last step with a first token."""
        self._due: list[list[tuple[str, Any]]] = [[] for _ in range(HUNDRED + 1)]
        """Requests with vLLM's figures of them, by the step they are due in, modulo the list's length."""
        self._step = 0

    def note(self, iteration: IterationStats) -> Reached:
        """Return what was reached with this step.

        Call it once for every step that has results, after vLLM has counted the step's tokens.
        """
        first_tokens = self._first_tokens(iteration) if iteration.time_to_first_tokens_iter else []
        return Reached(first_tokens, self._hundredth_tokens(iteration))

    def _first_tokens(self, iteration: IterationStats) -> list[FirstToken]:
        """The requests that go on are in `requests`, with this step's time as that of their first token.

        Those that ended with this token have left already, and are known by a decode time of exactly zero.
        """
        firsts = [
            FirstToken(request.queued_time, request.prefill_time)
            for request in iteration.finished_requests
            if request.decode_time == 0.0
        ]
        newest = self._newest_ts
        for request_id, state in self._requests.items():
            stats = state.stats
            if stats.first_token_ts > self._newest_ts:
                newest = max(newest, stats.first_token_ts)
                begun = stats.scheduled_ts
                firsts.append(FirstToken(begun - stats.queued_ts, stats.first_token_ts - begun))
                self._put_down(request_id, stats)
        self._newest_ts = newest
        # A request that the core refused was never scheduled: its time of scheduling is zero, and the
        # differences are the machine's uptime, below and above zero.
        return [first for first in firsts if first.queue_s >= 0.0 and first.prefill_s >= 0.0]

    def _hundredth_tokens(self, iteration: IterationStats) -> list[float]:
        slot = self._step % len(self._due)
        due = self._due[slot]
        reached: list[float] = []
        if due:
            self._due[slot] = []
        for request_id, stats in due:
            state = self._requests.get(request_id)
            if stats.num_generation_tokens >= HUNDRED:
                reached.append(iteration.iteration_timestamp - stats.arrival_time)
            elif state is not None and state.stats is stats:  # it has not been aborted
                self._put_down(request_id, stats)
        self._step += 1
        return reached

    def _put_down(self, request_id: str, stats: Any) -> None:
        steps = max(0, -(-(HUNDRED - stats.num_generation_tokens) // self._most_a_step))
        self._due[(self._step + steps) % len(self._due)].append((request_id, stats))
