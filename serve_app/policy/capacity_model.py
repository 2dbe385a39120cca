"""How many requests per second one replica can serve before TTFT or inter-token latency miss their targets.

It follows from how long a step of continuous batching takes, in seconds:

    step = base + per_sequence * batch + per_kv_token * KV tokens + per_prefill_token * prefill tokens
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from serve_app.settings.knobs import Knobs

_MAX_UTILISATION = 0.95
_KV_FILL = 0.9
"""Share of the KV cache to plan for: beyond it vLLM starts to preempt."""


@dataclass(frozen=True, slots=True)
class Mix:
    """The mean request of one model, in tokens."""

    prompt_tokens: float = 512.0
    computed_share: float = 1.0
    """Share of the prompt tokens that is prefilled, not found in the prefix cache."""
    output_tokens: float = 128.0

    @property
    def prefill_tokens(self) -> float:
        """Tokens that are prefilled for one request."""
        return self.prompt_tokens * self.computed_share

    @property
    def context_tokens(self) -> float:
        """KV cache tokens of one request, averaged over its decoding."""
        return self.prompt_tokens + self.output_tokens / 2


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds: `base_s` for each step, and what each sequence, KV token and prefill token adds to it."""

    base_s: float
    per_sequence_s: float
    per_kv_token_s: float
    per_prefill_token_s: float

    def decode_s(self, batch: float, kv_tokens: float) -> float:
        """Return the seconds of a step that only decodes."""
        return self.base_s + self.per_sequence_s * batch + self.per_kv_token_s * kv_tokens

    def work_s(self, mix: Mix) -> float:
        """Return the engine time that one request takes beyond the base of the steps it shares."""
        decode = self.per_sequence_s + self.per_kv_token_s * mix.context_tokens
        return decode * mix.output_tokens + self.per_prefill_token_s * mix.prefill_tokens


@dataclass(frozen=True, slots=True)
class Feasibility:
    """Whether an empty replica meets the targets, and what it reaches."""

    ttft_s: float
    """Time to first token of a mean request on an empty replica."""
    itl_s: float
    """Inter-token latency of a single sequence."""
    ttft: bool
    itl: bool


def feasibility(step: StepTime, mix: Mix, knobs: Knobs) -> Feasibility:
    """Return what the model says about an empty replica."""
    decode_s = step.decode_s(1.0, mix.context_tokens)
    ttft_s = step.base_s + step.per_prefill_token_s * mix.prefill_tokens
    return Feasibility(ttft_s, decode_s, ttft_s < knobs.ttft_target_s, decode_s < knobs.itl_target_s)


def slow_share(step: StepTime, mix: Mix, itl_target_s: float, rate: float) -> float:
    """Return the share of inter-token latencies above `itl_target_s` at `rate` requests per second.

    A token is late when its step also prefills a prompt that is too long for the target. If prompt lengths
    are spread exponentially around their mean, exp(-left / prefill) of the prompts are too long: `left`
    seconds of the target remain beside decoding, and the mean prompt takes `prefill`. Such steps interrupt
    decoding `rate` times per second, and a second has (1 - rate * prefill) / decode decoding steps.
    """
    work_s = step.work_s(mix)
    if rate * work_s >= _MAX_UTILISATION:
        return 1.0
    batch = rate * mix.output_tokens * step.base_s / (1.0 - rate * work_s)
    decode_s = step.decode_s(batch, batch * mix.context_tokens)
    prefill_s = step.per_prefill_token_s * mix.prefill_tokens
    left = itl_target_s - decode_s
    if left <= 0:
        return 1.0
    long_share = math.exp(-left / prefill_s) if prefill_s > 0 else 0.0
    decoding_share = 1.0 - rate * prefill_s
    return min(1.0, long_share * rate * decode_s / decoding_share) if decoding_share > 0 else 1.0


def itl_rps(step: StepTime, mix: Mix, knobs: Knobs, kv_cache_tokens: float, interference: float) -> float:
    """Return the requests per second at which one replica keeps its inter-token latencies.

    The largest rate x with a utilisation x * work below 0.95; the mean step is then base / (1 - x * work),
    and the batch x * output tokens * mean step (Little's law). Its tokens fit 0.9 of the KV cache, it
    decodes within the target, and at most 1 - percentile of its tokens are late because their step also
    prefills: `slow_share` times `interference`. A target that a single sequence misses is ignored.
    """
    work_s = max(step.work_s(mix), 1e-9)
    limited = mix.output_tokens > 1.0 and feasibility(step, mix, knobs).itl
    batch = _KV_FILL * kv_cache_tokens / mix.context_tokens if kv_cache_tokens > 0 else math.inf
    decode_one = step.per_sequence_s + step.per_kv_token_s * mix.context_tokens
    if limited and decode_one > 0:
        batch = min(batch, (knobs.itl_target_s - step.base_s) / decode_one)
    high = _MAX_UTILISATION / work_s
    if batch < math.inf:
        high = min(high, batch / (mix.output_tokens * step.base_s + batch * work_s))
    if not limited:
        return high
    late = (1.0 - knobs.ttft_percentile / 100.0) / interference
    return _largest(high, lambda rate: slow_share(step, mix, knobs.itl_target_s, rate) <= late)


def ttft_rps(step: StepTime, mix: Mix, knobs: Knobs, most_rps: float, replicas: float) -> float:
    """Return the requests per second, up to `most_rps`, at which one of `replicas` keeps its TTFT.

    At the percentile that is half a step of waiting, the prefill, and the wait behind other prompts. A
    request goes to the replica with the least prefill outstanding, so it waits only where all n are busy:
    with probability u^(sqrt(2 (n + 1)) - 1) (Sakasegawa's approximation of M/M/n; u for one replica), and
    then for s / (n (1 - u)) on average, where s is the mean service time. A target that an empty replica
    misses is ignored: no number of replicas would meet it.
    """
    feasible = feasibility(step, mix, knobs)
    if not feasible.ttft:
        return most_rps
    work_s, missed = step.work_s(mix), 1.0 - knobs.ttft_percentile / 100.0
    steps_s = mix.output_tokens * step.base_s
    decode_one = step.per_sequence_s + step.per_kv_token_s * mix.context_tokens
    prefill_s = step.per_prefill_token_s * mix.prefill_tokens
    pooled = math.sqrt(2.0 * (replicas + 1.0)) - 1.0
    limit_s = max(knobs.ttft_target_s, 1.5 * feasible.ttft_s)

    def holds(rate: float) -> bool:
        decode_s = step.base_s + decode_one * rate * steps_s / (1.0 - rate * work_s)
        service_s = decode_s + prefill_s
        busy = rate * service_s
        if busy >= _MAX_UTILISATION:
            return False
        waiting = busy**pooled
        wait_s = (
            service_s / (replicas * (1.0 - busy)) * math.log(waiting / missed) if waiting > missed else 0.0
        )
        return 1.5 * decode_s + prefill_s + wait_s <= limit_s

    return _largest(most_rps, holds)


def capacity_rps(
    step: StepTime,
    mix: Mix,
    knobs: Knobs,
    kv_cache_tokens: float,
    interference: float = 1.0,
    replicas: float = 1.0,
) -> float:
    """Return the requests per second that one of `replicas` can serve within the TTFT and ITL targets.

    `interference` is the measured share of late tokens over `slow_share`. `kv_cache_tokens` is how many a
    replica has room for, 0 for no limit.
    """
    return ttft_rps(step, mix, knobs, itl_rps(step, mix, knobs, kv_cache_tokens, interference), replicas)


def _largest(high: float, holds: Callable[[float], bool]) -> float:
    """Return the largest rate up to `high` at which `holds` is true, if it is false from some rate on.

    It is exact to 2 parts in 100,000 of `high`, and never 0.
    """
    if holds(high):
        return high
    low, above = 0.0, high
    for _ in range(16):
        middle = (low + above) / 2
        if holds(middle):
            low = middle
        else:
            above = middle
    return max(low, above * 1e-3)
