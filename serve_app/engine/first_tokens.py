"""TTFT in the engine, split into what more replicas can shorten and what they cannot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from vllm.v1.metrics.stats import IterationStats

from serve_app.telemetry.latency_window import LatencyWindow


class FirstToken(NamedTuple):
    """Where the time to one request's first token went, in seconds."""

    queue_s: float
    """In the engine's queue."""
    prefill_s: float
    """From the first step that took the prompt to the token."""


class FirstTokens:
    """Time in the engine's queue and time of prefill, of every request once it has its first token.

    Looked at in the step that makes the token: a generation may last for minutes, and vLLM's own figures
    of a request come with its end.

    Args:
        requests: vLLM's states of the requests it holds, by id; the very mapping it keeps.
        window_s: How far back the percentiles reach, in seconds.
        going_on: Told of each request that goes on after its first token: its id, and vLLM's figures of it.
    """

    def __init__(
        self,
        requests: Mapping[str, Any],
        window_s: float,
        going_on: Callable[[str, Any], None] = lambda request_id, stats: None,
    ) -> None:
        self._requests = requests
        self._going_on = going_on
        self._newest_ts = 0.0
        """The engine core's time of the last step with a first token."""
        self.queue = LatencyWindow(window_s)
        self.prefill = LatencyWindow(window_s)

    def note(self, iteration: IterationStats, now: float) -> list[FirstToken]:
        """Note the requests whose first token came with this step, each once, and return them.

        Those that go on are in `requests`, with this step's time as that of their first token. Those that
        ended with it have left already, and are known by a decode time of exactly nothing.
        """
        if not iteration.time_to_first_tokens_iter:
            return []
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
                self._going_on(request_id, stats)
        self._newest_ts = newest
        # A request that the core refused was never scheduled: its time of scheduling is zero, and the
        # differences are the machine's uptime, below and above zero.
        firsts = [first for first in firsts if first.queue_s >= 0.0 and first.prefill_s >= 0.0]
        for first in firsts:
            self.queue.observe(first.queue_s, now)
            self.prefill.observe(first.prefill_s, now)
        return firsts
