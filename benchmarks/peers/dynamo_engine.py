"""What Dynamo's planner expects of one engine, from the profile it takes before deployment."""

from __future__ import annotations

import math
from dataclasses import dataclass

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
