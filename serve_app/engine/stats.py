"""vLLM's step statistics, taken in process and turned into metrics."""

from __future__ import annotations

from typing import Any

from vllm.config import VllmConfig
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, MultiModalCacheStats, SchedulerStats

from serve_app.telemetry.engine_metrics import EngineGauges, EngineMetrics


class StepStats(StatLoggerBase):  # type: ignore[misc]
    """Called by vLLM after every engine step; adds the step to the replica's metrics."""

    def __init__(self, metrics: EngineMetrics) -> None:
        self._metrics = metrics
        self.scheduler = SchedulerStats()

    def factory(self, vllm_config: VllmConfig, engine_index: int = 0) -> StepStats:
        """What vLLM asks for instead of a logger: it builds one an engine, and we have one."""
        return self

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: MultiModalCacheStats | None = None,
        engine_idx: int = 0,
    ) -> None:
        """Add one step's statistics."""
        metrics = self._metrics
        if scheduler_stats is not None:
            self.scheduler = scheduler_stats
            prefix = scheduler_stats.prefix_cache_stats
            if prefix.queries:
                metrics.prefix_queries.inc(prefix.queries)
            if prefix.hits:
                metrics.prefix_hits.inc(prefix.hits)
        if iteration_stats is None:
            return
        for seconds in iteration_stats.time_to_first_tokens_iter:
            metrics.ttft.observe(seconds)
        for seconds in iteration_stats.inter_token_latencies_iter:
            metrics.inter_token.observe(seconds)
        if iteration_stats.num_prompt_tokens:
            metrics.prompt_tokens.inc(iteration_stats.num_prompt_tokens)
        if iteration_stats.num_generation_tokens:
            metrics.completion_tokens.inc(iteration_stats.num_generation_tokens)
        if iteration_stats.num_preempted_reqs:
            metrics.preemptions.inc(iteration_stats.num_preempted_reqs)
        for request in iteration_stats.finished_requests:
            metrics.e2e.observe(request.e2e_latency)
            metrics.requests.inc(1, tags={"finish_reason": str(request.finish_reason)})

    def log_engine_initialized(self) -> None:
        """vLLM's hook for its own start-up line; the replica logs its own."""


def read_gauges(engine: AsyncLLM, scheduler: SchedulerStats) -> EngineGauges:
    """The engine's queue as its front end knows it, and its cache as of the last step.

    Counted from the requests held rather than from the last step: an idle engine takes no steps, and
    its last one still says that something ran.
    """
    states: list[Any] = list(engine.output_processor.request_states.values())
    prefilling = [state for state in states if state.is_prefilling]
    running = min(len(states), scheduler.num_running_reqs)
    return EngineGauges(
        running_requests=running,
        waiting_requests=len(states) - running,
        running_tokens=sum(
            (state.prompt_len or 0) + state.stats.num_generation_tokens
            for state in states
            if not state.is_prefilling and state.stats is not None
        ),
        waiting_tokens=sum(state.prompt_len or 0 for state in prefilling),
        kv_cache_usage_ratio=scheduler.kv_cache_usage if states else 0.0,
    )
