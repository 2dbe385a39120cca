"""The metrics of one engine replica, labelled with its model and replica."""

from __future__ import annotations

from dataclasses import dataclass

from serve_app.api.errors import ApiError
from serve_app.telemetry.buckets import E2E_S, INTER_TOKEN_S, TTFT_S
from serve_app.telemetry.series import ReplicaSeries


@dataclass(frozen=True, slots=True)
class EngineGauges:
    """One reading of an engine's queue and cache."""

    running_requests: int
    waiting_requests: int
    running_tokens: int
    waiting_tokens: int
    kv_cache_usage_ratio: float


class EngineMetrics:
    """Registers the series of one replica with Ray; build it inside the replica, never at import."""

    def __init__(self, model: str, replica: str) -> None:
        series = ReplicaSeries(model, replica)
        histogram, counter, gauge = series.histogram, series.counter, series.gauge

        self.ttft = histogram("llm_ttft_seconds", "Time to first token, from the engine's arrival.", TTFT_S)
        self.inter_token = histogram("llm_inter_token_seconds", "Time between tokens.", INTER_TOKEN_S)
        self.e2e = histogram("llm_e2e_seconds", "Arrival to last token.", E2E_S)
        self.requests = counter(
            "llm_requests_total", "Finished generations, by finish reason.", "finish_reason"
        )
        self.prompt_tokens = counter("llm_prompt_tokens_total", "Prompt tokens processed.")
        self.completion_tokens = counter("llm_completion_tokens_total", "Tokens generated.")
        self.errors = counter("llm_errors_total", "Failed operations, by error code.", "type")
        self.preemptions = counter("llm_preemptions_total", "Sequences preempted for lack of KV cache.")
        self.prefix_queries = counter("llm_prefix_cache_queries_total", "Tokens looked up in the cache.")
        self.prefix_hits = counter("llm_prefix_cache_hits_total", "Tokens found in the prefix cache.")
        self.queue_depth = gauge("llm_queue_depth", "Requests waiting in the engine's queue.")
        self.running = gauge("llm_running_requests", "Requests generating.")
        self.waiting = gauge("llm_waiting_requests", "Requests not yet generating.")
        self.running_tokens = gauge("llm_running_tokens", "Tokens of the requests generating.")
        self.waiting_tokens = gauge("llm_waiting_tokens", "Prompt tokens not yet prefilled.")
        self.kv_cache = gauge("llm_kv_cache_usage_ratio", "Share of the KV cache in use, 0 to 1.")

    def set_gauges(self, reading: EngineGauges) -> None:
        """Publish one reading."""
        self.queue_depth.set(reading.waiting_requests)
        self.running.set(reading.running_requests)
        self.waiting.set(reading.waiting_requests)
        self.running_tokens.set(reading.running_tokens)
        self.waiting_tokens.set(reading.waiting_tokens)
        self.kv_cache.set(reading.kv_cache_usage_ratio)

    def count_error(self, error: ApiError) -> None:
        """Count a failed operation under its error code."""
        self.errors.inc(1, tags={"type": error.code or "unknown"})
