"""llm-d's workload variant autoscaler, by tokens."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from benchmarks.peers.wva import KV_THRESHOLD, QUEUE_THRESHOLD
from benchmarks.peers.wva_metrics import EVERY, SCRAPE_S, Metrics, Replica
from replay.sample import Sample

_UP_THRESHOLD = 0.85
_DOWN_BOUNDARY = 0.70
_OBSERVATIONS = 10
_SHORT, _MEDIUM = 100.0, 500.0


class LlmdWvaTokens:
    """llm-d WVA's second saturation analyzer, with its defaults, one variant.

    Every 30 s, by each replica's peaks of a minute: demand D is the tokens in KV caches, plus mean prompt
    tokens for each request waiting in an engine, plus prompt and generated tokens for each one held. A
    replica's capacity c is the lower of 80 % of its KV cache and what it can compute: the tokens in use when
    5 requests wait; else the mean of such observations at like output lengths; else N (I + O/2) with
    N = min(B O / (I + O), S) for prompts I, outputs O, B batched tokens and S sequences. Replicas are added
    for D / 0.85 beyond the supply of all that were asked for, rounded up; taken for what the ready ones
    supply beyond D / 0.70, rounded down. One replica is the least; acted on at once, as in `LlmdWva`.

    Source: llm-d workload-variant-autoscaler, `internal/engines/analyzers/saturation_v2` and
    `internal/engines/pipeline`.

    Args:
        max_num_seqs: Most requests of an engine's batch.
        max_num_batched_tokens: Most tokens of an engine's step.
    """

    name = "wva:2"
    interval_s = SCRAPE_S

    def __init__(self, max_num_seqs: int = 64, max_num_batched_tokens: int = 8192) -> None:
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._metrics = Metrics()
        self._turns = 0
        self._observed: dict[int, deque[float]] = {}
        self._capacity = 0.0

    def decide(self, sample: Sample) -> int:
        """One scrape, and every second time a decision."""
        self._metrics.scrape(sample)
        self._turns += 1
        if sample.target < 1:
            return 1
        if (self._turns - 1) % EVERY:
            return sample.target
        prompt, output = self._metrics.lengths()
        replicas = self._metrics.replicas()
        cache = sample.kv_cache_tokens
        if replicas:
            self._capacity = median(self._replica_capacity(r, cache, prompt, output) for r in replicas)
        if self._capacity <= 0:
            return sample.target
        demand = sum(r.kv_usage * cache + r.waiting * prompt for r in replicas)
        demand += sample.held * (prompt + output)
        return max(1, sample.target + self._step(demand, sample.target, len(replicas)))

    def _step(self, demand: float, target: int, ready: int) -> int:
        required = demand / _UP_THRESHOLD - max(target, ready) * self._capacity
        if required > 0:
            return math.ceil(required / self._capacity)
        spare = ready * self._capacity - demand / _DOWN_BOUNDARY
        return -math.floor(spare / self._capacity) if spare > 0 else 0

    def _replica_capacity(self, replica: Replica, cache: float, prompt: float, output: float) -> float:
        """Tokens."""
        by_memory = KV_THRESHOLD * cache
        in_use = replica.kv_usage * cache
        bucket = 0 if output < _SHORT else 1 if output < _MEDIUM else 2
        seen = self._observed.setdefault(bucket, deque(maxlen=_OBSERVATIONS))
        if replica.waiting >= QUEUE_THRESHOLD and in_use > 0:
            seen.append(in_use)
            return min(by_memory, in_use)
        if seen:
            return min(by_memory, sum(seen) / len(seen))
        if output <= 0:
            return by_memory
        batch = min(self._max_num_batched_tokens * output / (prompt + output), self._max_num_seqs)
        return min(by_memory, batch * (prompt + output / 2))
