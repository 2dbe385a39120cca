"""The metrics of one engine or ingress replica, each series labelled with the model and the replica.

The boundaries of histograms are in seconds. They are dense around the usual targets: 100, 200 and 500 ms for
TTFT, and 15, 25 and 40 ms for inter-token latency. So a P95 near a target falls into a narrow bucket.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

from ray.util.metrics import Counter, Gauge, Histogram

from serve_app.api.engine_client import OUTCOMES
from serve_app.api.errors import ApiError
from serve_app.ledger.usage import Account, Amounts
from serve_app.patches.ray import show_zero
from serve_app.settings.caller import Lane
from serve_app.settings.keys_file import OTHER_KEYS
from serve_app.wire.data_plane import Call
from serve_app.wire.signals import EngineSignals

TTFT_S = (
    0.01, 0.02, 0.03, 0.05, 0.075, 0.09, 0.1, 0.11, 0.125, 0.15, 0.175, 0.19, 0.2, 0.21, 0.225, 0.25, 0.3,
    0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 30.0, 60.0, 120.0,
)  # fmt: skip
INTER_TOKEN_S = (
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.0125, 0.014, 0.015, 0.016, 0.0175, 0.02, 0.0225, 0.024, 0.025,
    0.026, 0.0275, 0.03, 0.035, 0.0375, 0.04, 0.0425, 0.045, 0.05, 0.06, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0,
    2.5, 5.0, 10.0,
)  # fmt: skip
E2E_S = (
    0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0,
)  # fmt: skip

MOST_KEYS = 1000
"""The most names of API keys in the series of one replica, and of adapters. Further ones are counted as
`OTHER_KEYS`."""


def _bounded(name: str, known: set[str]) -> str:
    """Return the label for `name`, and add it to the `known` names unless there are too many."""
    if name in known or len(known) < MOST_KEYS:
        known.add(name)
        return name
    return OTHER_KEYS


class TalliedHistogram:
    """A histogram that counts in this process and gives Ray the totals once a second.

    With Ray's own histogram, the metrics agent of the node records each value again in Python: 10 µs per
    token. It would be fully busy at 100,000 tokens per second on its node. The agent also keeps the series of
    ended processes for good. Gauges go with their process.

    Args:
        bucket: The gauge for the number of values up to `le`, its additional label.
        total: The gauge for the sum of all values.
        count: The gauge for the number of values.
        bounds: Upper bounds of the buckets, ascending.
    """

    def __init__(self, bucket: Gauge, total: Gauge, count: Gauge, bounds: tuple[float, ...]) -> None:
        self._bucket, self._total, self._count = bucket, total, count
        self._bounds = bounds
        self._le = (*map(str, bounds), "+Inf")
        self._tallies: dict[tuple[tuple[str, str], ...], list[float]] = {}
        """By labels, the number of values in each bucket, and the sum of all values."""

    def observe(self, values: Iterable[float], **tags: str) -> None:
        tally = self._tallies.setdefault(tuple(tags.items()), [0.0] * (len(self._le) + 1))
        for value in values:
            tally[bisect_left(self._bounds, value)] += 1
            tally[-1] += value

    def publish(self) -> None:
        """Publish the totals. Call it every second: Ray forgets a gauge that is not set for two."""
        for labels, (*counts, total) in self._tallies.items():
            tags, at_most = dict(labels), list(accumulate(counts))
            for le, number in zip(self._le, at_most, strict=True):
                self._bucket.set(number, {**tags, "le": le})
            self._total.set(total, tags)
            self._count.set(at_most[-1], tags)


class ReplicaSeries:
    """Registers series with Ray. Use it inside the replica, never at import.

    `more` are further labels, which each observation or increment gives.
    """

    def __init__(self, **tags: str) -> None:
        self._tags = {name: tag for name, tag in tags.items() if tag}

    def histogram(self, name: str, text: str, bounds: tuple[float, ...], *more: str) -> Histogram:
        metric = Histogram(name, text, boundaries=list(bounds), tag_keys=(*self._tags, *more))
        metric.set_default_tags(self._tags)
        return metric

    def tallied(self, name: str, text: str, bounds: tuple[float, ...], *more: str) -> TalliedHistogram:
        """Return a histogram for many values, or of a process that often ends."""
        made = TalliedHistogram(
            self.gauge(f"{name}_bucket", text, *more, "le"),
            self.gauge(f"{name}_sum", text, *more),
            self.gauge(f"{name}_count", text, *more),
            bounds,
        )
        if not more:
            made.observe(())  # its zeros are shown
        return made

    def counter(self, name: str, text: str, *more: str) -> Counter:
        metric = Counter(name, text, tag_keys=(*self._tags, *more))
        metric.set_default_tags(self._tags)
        return metric

    def gauge(self, name: str, text: str, *more: str) -> Gauge:
        metric = Gauge(name, text, tag_keys=(*self._tags, *more))
        metric.set_default_tags(self._tags)
        return metric


@dataclass(slots=True)
class LaneLoad:
    """The requests of one lane in an engine."""

    running_requests: int = 0
    waiting_requests: int = 0
    running_tokens: int = 0
    waiting_tokens: int = 0


@dataclass(frozen=True, slots=True)
class EngineGauges:
    """One reading of an engine's queue and cache."""

    lanes: Mapping[Lane, LaneLoad]
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

    def __init__(self, model: str, replica: str, variant: str = "") -> None:
        series = ReplicaSeries(model=model, replica=replica, variant=variant)
        histogram, counter, gauge = series.tallied, series.counter, series.gauge

        text = "Time to first token, from the engine's arrival."
        self.ttft = histogram("llm_ttft_seconds", text, TTFT_S, "lane")
        # These leave out the lane `background`: its requests wait as long as others need the engine.
        text = "The part of TTFT in the engine's queue."
        self.queue_wait = histogram("llm_queue_wait_seconds", text, TTFT_S)
        text = "The part of TTFT from the first step to the first token."
        self.prefill = histogram("llm_prefill_seconds", text, TTFT_S)
        self.inter_token = histogram("llm_inter_token_seconds", "Time between tokens.", INTER_TOKEN_S)
        self.e2e = histogram("llm_e2e_seconds", "Arrival to last token.", E2E_S)
        text = "Finished generations, by finish reason."
        self.requests = counter("llm_requests_total", text, "finish_reason", "lane")
        self.prompt_tokens = counter("llm_prompt_tokens_total", "Prompt tokens processed.", "lane")
        self.completion_tokens = counter("llm_completion_tokens_total", "Tokens generated.", "lane")
        self.errors = counter("llm_errors_total", "Failed operations, by error code.", "type")
        text = "Sequences preempted for lack of KV cache, or of a place in the batch."
        self.preemptions = counter("llm_preemptions_total", text, "lane")
        self.prefix_queries = counter("llm_prefix_cache_queries_total", "Tokens looked up in the cache.")
        self.prefix_hits = counter("llm_prefix_cache_hits_total", "Tokens found in the prefix cache.")
        text = "Tokens that the ingress expected in the prefix cache."
        self.prefix_expected = counter("llm_prefix_cache_expected_total", text)
        self.queue_depth = gauge("llm_queue_depth", "Requests waiting in the engine's queue.", "lane")
        self.running = gauge("llm_running_requests", "Requests generating.", "lane")
        self.waiting = gauge("llm_waiting_requests", "Requests not yet generating.", "lane")
        self.running_tokens = gauge("llm_running_tokens", "Tokens of the requests generating.", "lane")
        self.waiting_tokens = gauge("llm_waiting_tokens", "Prompt tokens not yet prefilled.", "lane")
        self.kv_cache = gauge("llm_kv_cache_usage_ratio", "Share of the KV cache in use, 0 to 1.")
        self._kv_cache_tokens = gauge("llm_kv_cache_tokens", "Tokens the whole KV cache holds.")
        self._max_num_seqs = gauge("llm_max_num_seqs", "Most sequences in the batch.")
        self._max_num_batched_tokens = gauge("llm_max_num_batched_tokens", "Most tokens of one step.")
        self._steps = counter("llm_steps_total", "Engine steps.")
        self._step_s = counter("llm_step_seconds_total", "Time the steps took.")
        self._step_sequences = counter("llm_step_sequences_total", "Sequences that decoded, over the steps.")
        self._step_prefill = counter("llm_step_prefill_tokens_total", "Prompt tokens prefilled in the steps.")
        self._step_kv = counter("llm_step_kv_tokens_total", "Tokens in the KV cache, over the steps.")
        text = "Tokens that an API key used: prompt, cached (a part of prompt), completion."
        self._usage_tokens = counter("llm_usage_tokens_total", text, "key", "lane", "kind")
        text = "GPU time that an API key used."
        self._usage_gpu_s = counter("llm_usage_gpu_seconds_total", text, "key", "lane")
        text = "GPU time that no request used: idle, starting, draining."
        self._unused_gpu_s = counter("llm_usage_unused_gpu_seconds_total", text, "state")
        text = "Money, by ledger.gpu_hour_prices. The state of GPU time that a request used is `used`."
        self._usage_cost = counter("llm_usage_cost_total", text, "key", "lane", "state")
        self._unwritten_s = gauge("llm_usage_unwritten_seconds", "How long usage waits for the database.")
        self._keys: set[str] = set()
        self._adapter_requests = counter("llm_adapter_requests_total", "Requests for an adapter.", "adapter")
        self._adapter_loads = counter("llm_adapter_loads_total", "Loads of an adapter.", "adapter")
        text = "Time that the loads of an adapter took, downloads included."
        self._adapter_load_s = counter("llm_adapter_load_seconds_total", text, "adapter")
        self._adapters: set[str] = set()

    def set_gauges(self, reading: EngineGauges) -> None:
        for lane, load in reading.lanes.items():
            of_lane: dict[str, str] = {"lane": lane}
            self.queue_depth.set(load.waiting_requests, of_lane)
            self.running.set(load.running_requests, of_lane)
            self.waiting.set(load.waiting_requests, of_lane)
            self.running_tokens.set(load.running_tokens, of_lane)
            self.waiting_tokens.set(load.waiting_tokens, of_lane)
        self.kv_cache.set(reading.kv_cache_usage_ratio)

    def publish_histograms(self) -> None:
        """Publish what has been observed. Call it every second, as `TalliedHistogram.publish`."""
        for histogram in (self.ttft, self.queue_wait, self.prefill, self.inter_token, self.e2e):
            histogram.publish()

    def set_limits(self, limits: EngineLimits) -> None:
        """Publish the limits. Call it every second: Ray forgets a gauge that is not set for two."""
        self._kv_cache_tokens.set(limits.kv_cache_tokens)
        self._max_num_seqs.set(limits.max_num_seqs)
        self._max_num_batched_tokens.set(limits.max_num_batched_tokens)

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

    def count_usage(self, usage: Mapping[Account, Amounts], unwritten_s: float) -> None:
        """Count the usage of one second, and publish how long usage has been waiting for the database."""
        self._unwritten_s.set(unwritten_s)
        for account, amounts in usage.items():
            payer = {"key": _bounded(account.key, self._keys), "lane": account.lane}
            gpu_s = self._usage_gpu_s if account.state == "used" else self._unused_gpu_s
            labels = payer if account.state == "used" else {"state": account.state}
            for counter, amount, tags in (
                (self._usage_tokens, amounts.prompt_tokens, payer | {"kind": "prompt"}),
                (self._usage_tokens, amounts.cached_tokens, payer | {"kind": "cached"}),
                (self._usage_tokens, amounts.completion_tokens, payer | {"kind": "completion"}),
                (gpu_s, amounts.gpu_seconds, labels),
                (self._usage_cost, amounts.cost, payer | {"state": account.state}),
            ):
                if amount > 0:  # Ray refuses to count zero
                    counter.inc(amount, tags=tags)

    def count_adapter_load(self, adapter: str, seconds: float) -> None:
        tags = {"adapter": _bounded(adapter, self._adapters)}
        self._adapter_loads.inc(1, tags=tags)
        self._adapter_load_s.inc(seconds, tags=tags)

    def count_call(self, call: Call) -> None:
        """Count a call with an adapter, and the cached tokens that the ingress expected."""
        if call.adapter is not None:
            self._adapter_requests.inc(1, tags={"adapter": _bounded(call.adapter.name, self._adapters)})
        if call.expected_cached_tokens:
            self.prefix_expected.inc(call.expected_cached_tokens)

    def count_error(self, error: ApiError) -> None:
        self.errors.inc(1, tags={"type": error.code or "unknown"})


_MOST_BUDGETS = 100
COLD_WAIT_S = (
    1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 240.0, 300.0, 450.0,
    600.0,
)  # fmt: skip
"""Histogram boundaries, in seconds: from a small model on a warm node to the default deadline."""


class IngressMetrics:
    """Registers the series of one model with Ray. Build it inside the replica, never at import."""

    def __init__(self, model: str, replica: str) -> None:
        series = ReplicaSeries(model=model, replica=replica)
        histogram, counter, gauge = series.histogram, series.counter, series.gauge

        self.held = gauge("llm_held_requests", "Requests queued for a cold start.")
        self.oldest_held = gauge("llm_oldest_held_seconds", "How long ago the first of them came.")
        self.background_held = gauge(
            "llm_background_held_requests", "Requests of the lane background that wait for free capacity."
        )
        self.arrivals = counter("llm_arrivals_total", "Requests for generations and embeddings.")
        self.rejections = counter("llm_rejected_total", "Requests refused with 429 or 503.", "reason")
        self.abandonments = counter("llm_abandoned_total", "Requests left by their clients unanswered.")
        self.responses = counter(
            "llm_responses_total", "Requests that have ended, by how they ended.", "outcome"
        )
        self.background_responses = counter(
            "llm_background_responses_total",
            "The same of the lane background, which has no other series here.",
            "outcome",
        )
        self.cold_wait = histogram(
            "llm_cold_wait_seconds", "How long requests were queued, of those queued over 0.5 s.", COLD_WAIT_S
        )
        self.lost_wait = histogram(
            "llm_lost_wait_seconds", "How long lost replicas delayed requests, of those delayed.", COLD_WAIT_S
        )
        self.ttft = histogram(
            "llm_user_ttft_seconds", "Time to first token, from the arrival at the ingress.", TTFT_S, "cold"
        )

        show_zero(self.arrivals)
        show_zero(self.abandonments)
        for outcome in OUTCOMES:
            show_zero(self.responses, outcome=outcome)
            show_zero(self.background_responses, outcome=outcome)


class ApiKeyMetrics:
    """Registers the series of the API keys with Ray. Build it inside the replica, never at import."""

    def __init__(self, replica: str) -> None:
        series = ReplicaSeries(replica=replica)
        self._keys = series.gauge("llm_api_keys", "API keys in force.")
        text = "Whether the file of API keys is invalid, so that the previous keys are in force."
        self._invalid = series.gauge("llm_api_keys_file_invalid", text)
        text = "Requests above a limit of their API key."
        self._limited = series.counter("llm_rate_limited_total", text, "key", "limit")

    def publish(self, keys: int, invalid: bool) -> None:
        """Publish the state of the file. Call it every second: Ray forgets a gauge not set for two."""
        self._keys.set(keys)
        self._invalid.set(int(invalid))

    def count_limited(self, key: str, limit: str) -> None:
        self._limited.inc(1, tags={"key": key, "limit": limit})


class BudgetMetrics:
    """Registers the series of budgets with Ray. Build it inside the replica, never at import."""

    def __init__(self, replica: str) -> None:
        text = "The used share of a budget: costs of its period by its limit."
        self._used = ReplicaSeries(replica=replica).gauge("llm_budget_used_ratio", text, "budget")

    def publish(self, used: Mapping[str, float]) -> None:
        """Publish the 100 budgets with the largest share. Call it every second, as for all gauges."""
        for budget in sorted(used, key=lambda name: used[name], reverse=True)[:_MOST_BUDGETS]:
            self._used.set(used[budget], tags={"budget": budget})
