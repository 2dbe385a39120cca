"""llm-d's workload variant autoscaler: its two saturation analyzers, and the metrics that both go by."""

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

from replay.policies import Sample

_SCRAPE_S = 15.0
_EVERY = 2
"""Scrapes between two decisions: its engine polls every 30 s."""
_PEAK_S = 60.0
_RATE_S = 300.0
_KV_THRESHOLD = 0.80
_QUEUE_THRESHOLD = 5.0
_KV_SPARE = 0.1
_QUEUE_SPARE = 3.0
_EPS = 1e-9
_UP_THRESHOLD = 0.85
_DOWN_BOUNDARY = 0.70
_OBSERVATIONS = 10
_SHORT, _MEDIUM = 100.0, 500.0


@dataclass(frozen=True, slots=True)
class _Replica:
    """One replica's peaks."""

    kv_usage: float
    waiting: float


class _Metrics:
    """Peaks of the last minute by replica, as a Prometheus server would have them.

    Source: llm-d workload-variant-autoscaler, its Prometheus queries: `max_over_time(...[1m])` of KV cache
    usage and waiting requests, and 5-minute rates of prompt and generated tokens.
    """

    def __init__(self) -> None:
        self._scrapes: deque[tuple[float, dict[int, _Replica]]] = deque()
        self._totals: deque[tuple[float, float, float, float]] = deque()

    def scrape(self, sample: Sample) -> None:
        """Take in one scrape."""
        replicas = sample.replicas.tolist() if sample.replicas.size else range(sample.ready)
        rows = zip(replicas, sample.kv_usage.tolist(), sample.waiting.tolist(), strict=True)
        self._scrapes.append((sample.at, {number: _Replica(kv, waiting) for number, kv, waiting in rows}))
        while self._scrapes[0][0] <= sample.at - _PEAK_S:
            self._scrapes.popleft()
        self._totals.append(
            (sample.at, sample.finished, sample.finished_prompt_tokens, sample.finished_output_tokens)
        )
        while len(self._totals) > 2 and self._totals[1][0] <= sample.at - _RATE_S:
            self._totals.popleft()

    def replicas(self) -> list[_Replica]:
        """The replicas of the last scrape with their peaks."""
        found = []
        for number in self._scrapes[-1][1]:
            seen = [scraped[number] for _, scraped in self._scrapes if number in scraped]
            found.append(_Replica(max(r.kv_usage for r in seen), max(r.waiting for r in seen)))
        return found

    def lengths(self) -> tuple[float, float]:
        """Mean prompt and generated tokens of requests that ended in five minutes; 0 without any."""
        _, count, prompt, output = (a - b for a, b in zip(self._totals[-1], self._totals[0], strict=True))
        return (prompt / count, output / count) if count > 0 else (0.0, 0.0)


class LlmdWva:
    """llm-d WVA's first saturation analyzer, with its defaults, one variant.

    The policy decides every 30 s by each replica's peaks of a minute. A replica is saturated with 80 % of its
    KV cache in use or 5 requests waiting. The spare room to these thresholds is averaged over the unsaturated
    replicas. One replica is added if that room is below 10 % or 3 requests, or if all are saturated. One is
    removed if two or more are unsaturated and one fewer would still leave that room. The policy waits while
    target and ready replicas differ. The least is one replica. WVA passes its number to an HPA, which acts
    later; here the fleet acts at once.

    Source: llm-d workload-variant-autoscaler, `internal/saturation` and
    `config/samples/saturation-scaling-config.yaml`.
    """

    name = "wva"
    interval_s = _SCRAPE_S

    def __init__(self) -> None:
        self._metrics = _Metrics()
        self._turns = 0

    def decide(self, sample: Sample) -> int:
        """One scrape, and every second time a decision."""
        self._metrics.scrape(sample)
        self._turns += 1
        if sample.target < 1:
            return 1
        if (self._turns - 1) % _EVERY or sample.ready != sample.target:
            return sample.target
        return max(1, sample.target + self._step())

    def _step(self) -> int:
        spare = [
            (_KV_THRESHOLD - replica.kv_usage, _QUEUE_THRESHOLD - replica.waiting)
            for replica in self._metrics.replicas()
            if replica.kv_usage < _KV_THRESHOLD and replica.waiting < _QUEUE_THRESHOLD
        ]
        count = len(spare)
        if count == 0:
            return 1
        kv = sum(kv for kv, _ in spare) / count
        queue = sum(queue for _, queue in spare) / count
        if kv < _KV_SPARE or queue < _QUEUE_SPARE:
            return 1
        if count < 2:
            return 0
        spread = count / (count - 1)
        kv_left = _KV_THRESHOLD - (_KV_THRESHOLD - kv) * spread
        queue_left = _QUEUE_THRESHOLD - (_QUEUE_THRESHOLD - queue) * spread
        return -1 if kv_left >= _KV_SPARE - _EPS and queue_left >= _QUEUE_SPARE - _EPS else 0


class LlmdWvaTokens:
    """llm-d WVA's second saturation analyzer, with its defaults, one variant.

    The policy decides every 30 s by each replica's peaks of a minute. Demand D is the tokens in KV caches,
    plus the mean prompt tokens of each request that waits in an engine, plus prompt and output tokens of each
    request that queues for a cold start. A replica's capacity c is the lower of 80 % of its KV cache and the
    tokens it can compute. Those are the tokens in use when 5 requests wait; else the mean of such
    observations at similar output lengths; else N (I + O/2) with N = min(B O / (I + O), S) for prompts I,
    outputs O, B batched tokens and S sequences. Replicas are added for D / 0.85 beyond the supply of the
    target, rounded up. They are removed for the supply of the ready ones beyond D / 0.70, rounded down.

    Source: llm-d workload-variant-autoscaler, `internal/engines/analyzers/saturation_v2` and
    `internal/engines/pipeline`.
    """

    name = "wva:2"
    interval_s = _SCRAPE_S

    def __init__(self, max_num_seqs: int = 64, max_num_batched_tokens: int = 8192) -> None:
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._metrics = _Metrics()
        self._turns = 0
        self._observed: dict[int, deque[float]] = {}
        self._capacity = 0.0

    def decide(self, sample: Sample) -> int:
        """One scrape, and every second time a decision."""
        self._metrics.scrape(sample)
        self._turns += 1
        if sample.target < 1:
            return 1
        if (self._turns - 1) % _EVERY:
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

    def _replica_capacity(self, replica: _Replica, cache: float, prompt: float, output: float) -> float:
        """Tokens."""
        by_memory = _KV_THRESHOLD * cache
        in_use = replica.kv_usage * cache
        bucket = 0 if output < _SHORT else 1 if output < _MEDIUM else 2
        seen = self._observed.setdefault(bucket, deque(maxlen=_OBSERVATIONS))
        if replica.waiting >= _QUEUE_THRESHOLD and in_use > 0:
            seen.append(in_use)
            return min(by_memory, in_use)
        if seen:
            return min(by_memory, sum(seen) / len(seen))
        if output <= 0:
            return by_memory
        batch = min(self._max_num_batched_tokens * output / (prompt + output), self._max_num_seqs)
        return min(by_memory, batch * (prompt + output / 2))
