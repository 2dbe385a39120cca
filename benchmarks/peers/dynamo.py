"""NVIDIA Dynamo's SLA planner, for engines that both prefill and decode."""

import math
from dataclasses import dataclass, replace

from replay.policies import Sample
from serve_app.policy.capacity_model import StepTime


@dataclass(frozen=True, slots=True)
class Load:
    """Mean lengths of requests, in tokens."""

    prompt: float
    output: float
    prefill: float
    """Prompt tokens that are computed."""

    @property
    def context(self) -> float:
        """KV cache of one request, averaged over its decoding."""
        return self.prompt + self.output / 2.0


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine that prefills in chunks while it decodes.

    Source: NVIDIA Dynamo planner, `core/perf_model/agg.py`: the largest batch that meets both targets gives
    the rate by Little's law.
    """

    step: StepTime
    max_num_seqs: int
    max_num_batched_tokens: int

    def iteration_s(self, batch: float, kv_tokens: float, prefill_tokens: float) -> float:
        """One step."""
        return self.step.decode_s(batch, kv_tokens) + self.step.per_prefill_token_s * prefill_tokens

    def ttft_s(self, queued_tokens: float, batch: float, kv_tokens: float, prefill: float) -> float:
        """First token of a request that arrives behind `queued_tokens` of prefill."""
        tokens = queued_tokens + prefill
        steps = math.ceil(tokens / self.max_num_batched_tokens)
        return steps * self.step.decode_s(batch, kv_tokens) + self.step.per_prefill_token_s * tokens

    def prefill_per_step(self, batch: float, load: Load) -> float:
        """Prefill tokens of a step where as many requests begin as end."""
        return min(batch * load.prefill / max(1.0, load.output), float(self.max_num_batched_tokens))

    def best_rps(self, load: Load, kv_cache_tokens: float, ttft_s: float, itl_s: float) -> float:
        """The highest rate with TTFT and ITL within targets; that of a batch of 1 where none has them.

        A longer batch takes longer in both, so the largest is found by bisection.
        """
        low, high = 1, max(1, self._most_batch(load, kv_cache_tokens))
        while low < high:
            middle = (low + high + 1) // 2
            if self._meets(middle, load, ttft_s, itl_s):
                low = middle
            else:
                high = middle - 1
        return low / (max(1.0, load.output) * self._steady_s(low, load))

    def _most_batch(self, load: Load, kv_cache_tokens: float) -> int:
        budget = self.max_num_batched_tokens
        fits = kv_cache_tokens / max(1.0, load.context) if kv_cache_tokens > 0 else math.inf
        # Beyond this, decoding leaves too little of a step for the prefill of those that follow.
        balanced = budget - load.prompt / max(1.0, load.output)
        return int(min(fits, self.max_num_seqs, budget - 1, balanced))

    def _steady_s(self, batch: float, load: Load) -> float:
        return self.iteration_s(batch, batch * load.context, self.prefill_per_step(batch, load))

    def _meets(self, batch: int, load: Load, ttft_s: float, itl_s: float) -> bool:
        if self._steady_s(batch, load) > itl_s:
            return False
        queued = self.prefill_per_step(batch, load)
        return self.ttft_s(queued, batch, batch * load.context, load.prefill) <= ttft_s


ITL_S = 0.050
TTFT_S = 0.500
INTERVAL_S = 180.0
_LOAD_INTERVAL_S = 5.0
_SENSITIVITY = 0.80
_EPS_S = 1e-6


@dataclass(frozen=True, slots=True)
class _Traffic:
    """The traffic of one interval, by a frontend's metrics."""

    rps: float
    load: Load
    ttft_s: float
    itl_s: float
    """0 where no token followed another."""


class DynamoPlanner:
    """The planner with throughput-based and load-based scaling both on, as its guide advises.

    Throughput, every 180 s: the request rate and mean lengths of the last interval are expected for the next
    (the "constant" predictor). The largest batch with ITL and TTFT within the targets gives the rate of one
    engine, batch / (output * iteration). Demand over that rate, rounded up, is a floor. Correction factors,
    measured over expected latency at the past concurrency, lower the ITL target (itl / correction) and the
    work of prefill (min(1, correction)). Without traffic nothing changes.

    Load, every 5 s unless target and ready replicas differ: one more if each engine's expected TTFT, or each
    engine's ITL, is above its target. One fewer if N - 1 engines keep ITL under 80 % of its target, their
    caches from filling, and the queue's part of TTFT under 80 % of the rest of the target. The least is one
    replica.

    Source: NVIDIA Dynamo, planner design and planner guide; `core/throughput_scaling.py`,
    `core/load_scaling.py` and `config/defaults.py`; correction factors as in the planner design of its 1.0.
    Its default predictor, ARIMA, is not reproduced. Its live regression gets the true coefficients here,
    because Dynamo profiles before deployment.
    """

    interval_s = _LOAD_INTERVAL_S

    def __init__(
        self,
        fit: StepTime,
        *,
        itl_s: float = ITL_S,
        ttft_s: float = TTFT_S,
        interval_s: float = INTERVAL_S,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 8192,
    ) -> None:
        given = {"itl": (itl_s, ITL_S), "ttft": (ttft_s, TTFT_S), "interval": (interval_s, INTERVAL_S)}
        settings = ",".join(f"{key}={value:g}" for key, (value, usual) in given.items() if value != usual)
        self.name = f"dynamo:{settings}" if settings else "dynamo"
        self._engine = Engine(fit, max_num_seqs, max_num_batched_tokens)
        self._itl_s = itl_s
        self._ttft_s = ttft_s
        self._throughput_interval_s = interval_s
        self._next_at = interval_s
        self._before: Sample | None = None
        self._load: Load | None = None
        self._floor = 1

    def decide(self, sample: Sample) -> int:
        """One turn of the load loop; the floor is renewed where its interval is over."""
        if self._before is None:
            self._before = sample
        if sample.at + _EPS_S >= self._next_at:
            self._next_at += self._throughput_interval_s
            self._renew_floor(sample, self._before)
            self._before = sample
        if sample.target < 1:
            return 1
        if sample.ready != sample.target:
            return sample.target  # scaling is in progress: it only looks on
        return max(sample.target + self._load_step(sample), self._floor, 1)

    def _renew_floor(self, sample: Sample, before: Sample) -> None:
        traffic = _traffic(sample, before)
        if traffic is None:
            return
        prefill, itl = self._corrections(traffic, max(1, sample.ready))
        load = self._load = replace(traffic.load, prefill=traffic.load.prompt * prefill)
        rate = self._engine.best_rps(load, sample.kv_cache_tokens, self._ttft_s, self._itl_s / itl)
        self._floor = max(1, math.ceil(traffic.rps / rate))

    def _corrections(self, traffic: _Traffic, engines: int) -> tuple[float, float]:
        """Measured over expected: of the prefill, at most 1, and of ITL."""
        load, engine = traffic.load, self._engine
        expected_ttft = engine.ttft_s(0.0, 1.0, 0.0, load.prefill)
        prefill = min(1.0, traffic.ttft_s / expected_ttft) if traffic.ttft_s > 0 else 1.0
        duration = traffic.ttft_s + traffic.itl_s * load.output
        batch = max(1.0, traffic.rps / engines * duration)
        expected_itl = engine.iteration_s(batch, batch * load.context, engine.prefill_per_step(batch, load))
        return prefill, traffic.itl_s / expected_itl if traffic.itl_s > 0 else 1.0

    def _load_step(self, sample: Sample) -> int:
        load, engine = self._load, self._engine
        if load is None:
            return 0
        batch = sample.running
        kv = sample.kv_usage * sample.kv_cache_tokens
        queued = sample.waiting * load.prefill
        steady = engine.prefill_per_step(float(batch.mean()), load)
        engines = list(zip(batch.tolist(), kv.tolist(), queued.tolist(), strict=True))
        if all(engine.ttft_s(q, b, k, load.prefill) > self._ttft_s for b, k, q in engines):
            return 1
        if all(engine.iteration_s(b + 1, k + load.context, steady) > self._itl_s for b, k, _ in engines):
            return 1
        if sample.ready < 2:
            return 0
        spread = sample.ready / (sample.ready - 1)
        return -1 if all(self._fits(load, steady, sample, row, spread) for row in engines) else 0

    def _fits(
        self, load: Load, steady: float, sample: Sample, row: tuple[float, float, float], spread: float
    ) -> bool:
        """Whether an engine meets its targets with the load of one engine fewer."""
        engine = self._engine
        batch, kv, queued = (value * spread for value in row)
        if kv + queued >= sample.kv_cache_tokens:
            return False
        if engine.iteration_s(batch + 1, kv + queued + load.context, steady) >= self._itl_s * _SENSITIVITY:
            return False
        alone = engine.ttft_s(0.0, batch, kv, load.prefill)
        waited = engine.ttft_s(queued, batch, kv, load.prefill) - alone
        return waited < (self._ttft_s - alone) * _SENSITIVITY


def _traffic(sample: Sample, before: Sample) -> _Traffic | None:
    """The interval between two samples; None where no request arrived or none ended."""
    seconds = sample.at - before.at
    arrivals = sample.arrivals - before.arrivals
    finished = sample.finished - before.finished
    if seconds <= 0 or arrivals <= 0 or finished <= 0:
        return None
    prompt = (sample.arrived_tokens - before.arrived_tokens) / arrivals
    output = (sample.finished_output_tokens - before.finished_output_tokens) / finished
    first = sample.first_tokens - before.first_tokens
    gaps = sample.itl_count - before.itl_count
    return _Traffic(
        rps=arrivals / seconds,
        load=Load(prompt, output, prefill=prompt),
        ttft_s=(sample.ttft_sum_s - before.ttft_sum_s) / first if first > 0 else 0.0,
        itl_s=(sample.itl_sum_s - before.itl_sum_s) / gaps if gaps > 0 else 0.0,
    )
