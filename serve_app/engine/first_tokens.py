"""TTFT in the engine, split into what more replicas can shorten and what they cannot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.v1.metrics.stats import IterationStats

from serve_app.telemetry.latency_window import LatencyWindow


class FirstTokens:
    """Time in the engine's queue and time of prefill, of every request once it has its first token.

    Looked at in the step that makes the token: a generation may last for minutes, and vLLM's own figures
    of a request come with its end.

    Args:
        requests: vLLM's states of the requests it holds, by id; the very mapping it keeps.
        window_s: How far back the percentiles reach, in seconds.
    """

    def __init__(self, requests: Mapping[str, Any], window_s: float) -> None:
        self._requests = requests
        self._newest_ts = 0.0
        """The engine core's time of the last step with a first token."""
        self.queue = LatencyWindow(window_s)
        self.prefill = LatencyWindow(window_s)

    def note(self, iteration: IterationStats, now: float) -> float | None:
        """Note the requests whose first token came with this step, each once; return the shortest prefill.

        Those that go on are in `requests`, with this step's time as that of their first token. Those that
        ended with it have left already, and are known by a decode time of exactly nothing.
        """
        if not iteration.time_to_first_tokens_iter:
            return None
        times = [
            (request.queued_time, request.prefill_time)
            for request in iteration.finished_requests
            if request.decode_time == 0.0
        ]
        newest = self._newest_ts
        for state in self._requests.values():
            stats = state.stats
            if stats.first_token_ts > self._newest_ts:
                newest = max(newest, stats.first_token_ts)
                times.append(
                    (stats.scheduled_ts - stats.queued_ts, stats.first_token_ts - stats.scheduled_ts)
                )
        self._newest_ts = newest
        # A request that the core refused was never scheduled: its time of scheduling is zero, and the
        # differences are the machine's uptime, below and above zero.
        times = [(queue_s, prefill_s) for queue_s, prefill_s in times if queue_s >= 0.0 and prefill_s >= 0.0]
        for queue_s, prefill_s in times:
            self.queue.observe(queue_s, now)
            self.prefill.observe(prefill_s, now)
        return min((prefill_s for _, prefill_s in times), default=None)
