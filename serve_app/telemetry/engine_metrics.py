"""The metrics of one engine replica, labelled with its model and replica."""

from dataclasses import dataclass

from serve_app.api.engine_client import EngineRequest
from serve_app.api.errors import ApiError
from serve_app.telemetry.series import E2E_S, INTER_TOKEN_S, TTFT_S, ReplicaSeries
from serve_app.wire.signals import EngineSignals


@dataclass(frozen=True, slots=True)
class EngineGauges:
    """One reading of an engine's queue and cache."""

    running_requests: int
    waiting_requests: int
    running_tokens: int
    waiting_tokens: int
    kv_cache_usage_ratio: float


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The bounds of an engine's batch, constant while it runs."""

    kv_cache_tokens: int
    """The size of the KV cache in tokens; 0 for a model without one."""
    max_num_seqs: int
    max_num_batched_tokens: int
    """Tokens of one step."""


class EngineMetrics:
    """Registers the series of one replica with Ray. Build it inside the replica, never at import."""

    def __init__(self, model: str, replica: str) -> None:
        series = ReplicaSeries(model, replica)
        histogram, counter, gauge = series.histogram, series.counter, series.gauge

        self.ttft = histogram("llm_ttft_seconds", "Time to first token, from the engine's arrival.", TTFT_S)
        text = "The part of TTFT in the engine's queue."
        self.queue_wait = histogram("llm_queue_wait_seconds", text, TTFT_S)
        text = "The part of TTFT from the first step to the first token."
        self.prefill = histogram("llm_prefill_seconds", text, TTFT_S)
        self.inter_token = series.tallied("llm_inter_token_seconds", "Time between tokens.", INTER_TOKEN_S)
        self.e2e = histogram("llm_e2e_seconds", "Arrival to last token.", E2E_S)
        text = "Finished generations, by finish reason."
        self.requests = counter("llm_requests_total", text, "finish_reason")
        self.prompt_tokens = counter("llm_prompt_tokens_total", "Prompt tokens processed.")
        self.completion_tokens = counter("llm_completion_tokens_total", "Tokens generated.")
        self.errors = counter("llm_errors_total", "Failed operations, by error code.", "type")
        self.preemptions = counter("llm_preemptions_total", "Sequences preempted for lack of KV cache.")
        self.prefix_queries = counter("llm_prefix_cache_queries_total", "Tokens looked up in the cache.")
        self.prefix_hits = counter("llm_prefix_cache_hits_total", "Tokens found in the prefix cache.")
        text = "Tokens that the ingress expected in the prefix cache."
        self.prefix_expected = counter("llm_prefix_cache_expected_total", text)
        self.queue_depth = gauge("llm_queue_depth", "Requests waiting in the engine's queue.")
        self.running = gauge("llm_running_requests", "Requests generating.")
        self.waiting = gauge("llm_waiting_requests", "Requests not yet generating.")
        self.running_tokens = gauge("llm_running_tokens", "Tokens of the requests generating.")
        self.waiting_tokens = gauge("llm_waiting_tokens", "Prompt tokens not yet prefilled.")
        self.kv_cache = gauge("llm_kv_cache_usage_ratio", "Share of the KV cache in use, 0 to 1.")
        self._kv_cache_tokens = gauge("llm_kv_cache_tokens", "Tokens the whole KV cache holds.")
        self._max_num_seqs = gauge("llm_max_num_seqs", "Most sequences in the batch.")
        self._max_num_batched_tokens = gauge("llm_max_num_batched_tokens", "Most tokens of one step.")
        self._steps = counter("llm_steps_total", "Engine steps.")
        self._step_s = counter("llm_step_seconds_total", "Time the steps took.")
        self._step_sequences = counter("llm_step_sequences_total", "Sequences that decoded, over the steps.")
        self._step_prefill = counter("llm_step_prefill_tokens_total", "Prompt tokens prefilled in the steps.")
        self._step_kv = counter("llm_step_kv_tokens_total", "Tokens in the KV cache, over the steps.")

    def set_gauges(self, reading: EngineGauges) -> None:
        """Publish one reading."""
        self.queue_depth.set(reading.waiting_requests)
        self.running.set(reading.running_requests)
        self.waiting.set(reading.waiting_requests)
        self.running_tokens.set(reading.running_tokens)
        self.waiting_tokens.set(reading.waiting_tokens)
        self.kv_cache.set(reading.kv_cache_usage_ratio)

    def set_limits(self, limits: EngineLimits) -> None:
        """Publish the limits. Call it every second: Ray forgets a gauge that is not set for two."""
        self._kv_cache_tokens.set(limits.kv_cache_tokens)
        self._max_num_seqs.set(limits.max_num_seqs)
        self._max_num_batched_tokens.set(limits.max_num_batched_tokens)

    def publish_tallies(self) -> None:
        """Publish the counts of this process. Call it every second, for the same reason."""
        self.inter_token.publish()

    def count_steps(self, signals: EngineSignals) -> None:
        """Count the steps of one report as sums, which stay right if a scrape misses reports."""
        steps = signals.steps
        for counter, amount in (
            (self._steps, steps),
            (self._step_s, steps * signals.step_s),
            (self._step_sequences, steps * signals.step_batch),
            (self._step_prefill, steps * signals.step_prefill_tokens),
            (self._step_kv, steps * signals.step_kv_tokens),
        ):
            if amount > 0:  # Ray refuses to count zero
                counter.inc(amount)

    def count_call(self, request: EngineRequest) -> None:
        """Count the cached tokens that the ingress expected."""
        if request.expected_cached_tokens:
            self.prefix_expected.inc(request.expected_cached_tokens)

    def count_error(self, error: ApiError) -> None:
        """Count a failed operation under its error code."""
        self.errors.inc(1, tags={"type": error.code or "unknown"})
