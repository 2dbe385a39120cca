"""vLLM's step statistics, taken in process and turned into metrics and signals."""

import logging

from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, MultiModalCacheStats, SchedulerStats

from serve_app.engine.engine_steps import EngineSteps
from serve_app.telemetry.engine_metrics import EngineMetrics

logger = logging.getLogger("ray.serve")


class StepStats(StatLoggerBase):  # type: ignore[misc]
    """The logger that vLLM calls after every engine step: adds the step to the metrics and the report.

    `steps` is None until the warm-up is over.
    """

    def __init__(self, metrics: EngineMetrics) -> None:
        self._metrics = metrics
        self._failed = False
        self.steps: EngineSteps | None = None

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: MultiModalCacheStats | None = None,
        engine_idx: int = 0,
    ) -> None:
        """Add one step's statistics. Never raises."""
        try:
            if self.steps is not None:
                reached = self.steps.add(scheduler_stats, iteration_stats)
                for queue_s, prefill_s in reached.first_tokens:
                    self._metrics.queue_wait.observe(queue_s)
                    self._metrics.prefill.observe(prefill_s)
                for seconds in reached.hundred_tokens_s:
                    self._metrics.hundred_tokens.observe(seconds)
            self._export(scheduler_stats, iteration_stats)
        except Exception:
            # Raised, it would end vLLM's output loop, and every stream of this replica with it. A step
            # may come every few milliseconds, so only the first failure is logged.
            if not self._failed:
                self._failed = True
                logger.exception("the statistics of an engine step were lost; metrics are incomplete")

    def _export(self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None) -> None:
        metrics = self._metrics
        if scheduler_stats is not None:
            prefix = scheduler_stats.prefix_cache_stats
            if prefix.queries:
                metrics.prefix_queries.inc(prefix.queries)
            if prefix.hits:
                metrics.prefix_hits.inc(prefix.hits)
        if iteration_stats is None:
            return
        for seconds in iteration_stats.time_to_first_tokens_iter:
            metrics.ttft.observe(seconds)
        metrics.inter_token.observe(iteration_stats.inter_token_latencies_iter)
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
        """Do nothing: the replica logs its own start-up line."""
