"""What an engine replica tells the autoscaling policy, collected step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from serve_app.engine.first_tokens import FirstToken, FirstTokens
from serve_app.engine.hundred_tokens import HundredTokens
from serve_app.engine.queue_reading import QueueReading, read_queue
from serve_app.engine.step_sums import StepSums, step_seconds
from serve_app.settings.knobs import ITL_PERCENTILES, PERCENTILES
from serve_app.telemetry.latency_window import LatencyWindow
from serve_app.wire.signals import EngineSignals

_WINDOW_S = 30.0


class Milestones(NamedTuple):
    """What requests reached with one step."""

    first_tokens: Sequence[FirstToken] = ()
    hundred_tokens_s: Sequence[float] = ()
    """Seconds from the arrival to the hundredth token, of those that have it now."""


_NONE = Milestones()


class EngineReport:
    """Totals since it was built, means since the last report, percentiles of the last 30 s.

    Build it when the warm-up is over, and the warm-up is in none of them.

    Args:
        requests: vLLM's states of the requests it holds, by id; the very mapping it keeps.
        kv_cache_tokens: Tokens the whole KV cache holds.
        most_tokens_a_step: Tokens of one sequence in one step, more than one with speculative decoding.
        clock: Seconds that never go back.
        wall: Unix time in seconds.
    """

    def __init__(
        self,
        requests: Mapping[str, Any],
        kv_cache_tokens: int,
        most_tokens_a_step: int = 1,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._requests = requests
        self._kv_cache_tokens = kv_cache_tokens
        self._clock = clock
        self._wall = wall
        self._scheduler = SchedulerStats()
        self._last_step_at: float | None = None
        """When the last step's statistics came, if it left the engine with work to do."""
        self.steps_taken = 0
        """Since it was built."""
        self._steps = StepSums()
        self._hundred_tokens = HundredTokens(requests, most_tokens_a_step)
        self._first_tokens = FirstTokens(requests, _WINDOW_S, self._hundred_tokens.begin)
        self._inter_token = LatencyWindow(_WINDOW_S)
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._finished_requests = 0
        self._finished_prompt_tokens = 0
        self._finished_generation_tokens = 0
        self._preemptions = 0

    @classmethod
    def of(cls, engine: AsyncLLM) -> EngineReport:
        """The report of an engine that has started."""
        # Not blocks times block size: a hybrid model's sequence holds blocks of several kinds. A model
        # without a KV cache has no size.
        tokens: int = engine.vllm_config.cache_config.kv_cache_size_tokens or 0
        return cls(
            engine.output_processor.request_states, tokens, 1 + engine.vllm_config.num_speculative_tokens
        )

    def step(self, scheduler: SchedulerStats | None, iteration: IterationStats | None) -> Milestones:
        """Add one engine step. `iteration` is None if the step had no result for any request."""
        self.steps_taken += 1
        now = self._clock()
        reached = self._add_results(iteration, now) if iteration is not None else _NONE
        if scheduler is not None:
            self._scheduler = scheduler
            self._add_step(scheduler, iteration, reached.first_tokens, now)
            self._last_step_at = now if self._requests else None
        return reached

    @property
    def unfinished(self) -> int:
        """Sequences the engine has, waiting or running."""
        return len(self._requests)

    def queue(self) -> QueueReading:
        """The queue and the cache now."""
        return read_queue(self._requests, self._scheduler, self._wall())

    def take(self, ongoing_requests: int) -> EngineSignals:
        """One report, at most one a second; its means begin anew.

        Args:
            ongoing_requests: Requests open on the data plane.
        """
        now = self._clock()
        reading = self.queue()
        gauges = reading.gauges
        steps = self._steps.take()
        values = {
            "running_requests": gauges.running_requests,
            "waiting_requests": gauges.waiting_requests,
            "running_tokens": gauges.running_tokens,
            "waiting_tokens": gauges.waiting_tokens,
            "oldest_waiting_s": reading.oldest_waiting_s,
            "ongoing_requests": ongoing_requests,
            "kv_cache_usage_ratio": gauges.kv_cache_usage_ratio,
            "kv_cache_tokens": self._kv_cache_tokens,
            "prompt_tokens_total": self._prompt_tokens,
            "generation_tokens_total": self._generation_tokens,
            "finished_requests_total": self._finished_requests,
            "finished_prompt_tokens_total": self._finished_prompt_tokens,
            "finished_generation_tokens_total": self._finished_generation_tokens,
            "preemptions_total": self._preemptions,
            "steps": steps.steps,
            "step_s": steps.step_s,
            "step_batch": steps.batch,
            "step_prefill_tokens": steps.prefill_tokens,
            "step_kv_tokens": steps.kv_tokens,
            "ttft_count": self._first_tokens.queue.count(now),
            **_percentiles("ttft_queue", self._first_tokens.queue, now, PERCENTILES),
            **_percentiles("ttft_prefill", self._first_tokens.prefill, now, PERCENTILES),
            "itl_count": self._inter_token.count(now),
            **_percentiles("itl", self._inter_token, now, ITL_PERCENTILES),
        }
        return EngineSignals(**{name: float(value) for name, value in values.items()})

    def _add_results(self, iteration: IterationStats, now: float) -> Milestones:
        """Add what came of a step; return what requests reached with it."""
        observe = self._inter_token.observe
        for seconds in iteration.inter_token_latencies_iter:
            observe(seconds, now)
        self._prompt_tokens += iteration.prompt_token_stats.computed
        self._generation_tokens += iteration.num_generation_tokens
        self._preemptions += iteration.num_preempted_reqs
        for request in iteration.finished_requests:
            self._finished_requests += 1
            self._finished_prompt_tokens += request.num_prompt_tokens
            self._finished_generation_tokens += request.num_generation_tokens
        return Milestones(self._first_tokens.note(iteration, now), self._hundred_tokens.note(iteration))

    def _add_step(
        self,
        scheduler: SchedulerStats,
        iteration: IterationStats | None,
        first_tokens: Sequence[FirstToken],
        now: float,
    ) -> None:
        details = scheduler.iteration_details
        if details is None or details.is_dummy:
            return
        if iteration is None and not self._requests:
            # With asynchronous scheduling the core has begun one more step before it sees that the last
            # request has ended, and that step is nobody's.
            return
        self._steps.add(
            step_seconds(
                iteration.inter_token_latencies_iter if iteration is not None else (),
                now - self._last_step_at if self._last_step_at is not None else None,
                min((first.prefill_s for first in first_tokens), default=None),
                details.elapsed_ms,
            ),
            details.num_generation_requests,
            details.num_ctx_tokens,
            scheduler.kv_cache_usage * self._kv_cache_tokens,
        )


def _percentiles(
    name: str, window: LatencyWindow, now: float, percentiles: tuple[int, ...]
) -> dict[str, float]:
    return {f"{name}_p{q}_s": window.percentile(q, now) for q in percentiles}
