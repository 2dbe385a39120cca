"""The requests per second that one replica can serve within the latency targets, and the replicas for a rate.

Both follow from the seconds of one step of continuous batching:

    step = base + per_sequence * batch + per_kv_token * KV tokens + per_prefill_token * prefill tokens
"""

import math
from collections.abc import Callable
from dataclasses import field

from serve_app.settings.knobs import Knobs
from serve_app.wire.quick_dataclass import quick_dataclass

MOST_REPLICAS = 1_000_000
KV_FILL = 0.9
"""Share of the KV cache to fill. Reported tokens are momentary, and vLLM preempts when the cache is full."""
_MAX_UTILISATION = 0.95
_ITL_ROOM = 1.25
"""A fleet is sized for at least 1.25 times the ITL of a single sequence, whatever the target. Closer to that
ITL, the number of replicas has no bound."""
_TTFT_ROOM = 1.5
"""The same for the TTFT: a request that arrives during a decoding step waits for half a step on average."""
_LARGEST_POOL = 64
"""In a larger fleet hardly any request waits."""


@quick_dataclass(frozen=True, slots=True)
class Mix:
    """The mean request of one model, in tokens."""

    prompt_tokens: float = 512.0
    computed_share: float = 1.0
    """Share of the prompt tokens that are prefilled, because the prefix cache lacks them."""
    output_tokens: float = 128.0

    @property
    def prefill_tokens(self) -> float:
        return self.prompt_tokens * self.computed_share

    @property
    def context_tokens(self) -> float:
        """KV cache tokens of one request, averaged over its decoding."""
        return self.prompt_tokens + self.output_tokens / 2


@quick_dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds: `base_s` for each step, and what each sequence, KV token and prefill token adds to it."""

    base_s: float
    per_sequence_s: float
    per_kv_token_s: float
    per_prefill_token_s: float

    def scaled(self, speed: float) -> "StepTime":
        """Return the step time of a replica that is `speed` times as fast."""
        parts = self.base_s, self.per_sequence_s, self.per_kv_token_s, self.per_prefill_token_s
        return StepTime(*(part / speed for part in parts))

    def decode_s(self, batch: float, kv_tokens: float) -> float:
        """Return the seconds of a step that only decodes."""
        return self.base_s + self.per_sequence_s * batch + self.per_kv_token_s * kv_tokens

    def sequence_s(self, mix: Mix) -> float:
        """Return the seconds that one sequence adds to a step that only decodes."""
        return self.per_sequence_s + self.per_kv_token_s * mix.context_tokens

    def prefill_s(self, mix: Mix) -> float:
        """Return the seconds that the prefill of one request adds to a step."""
        return self.per_prefill_token_s * mix.prefill_tokens

    def work_s(self, mix: Mix) -> float:
        """Return the engine time that one request takes beyond the base of the steps it shares."""
        return self.sequence_s(mix) * mix.output_tokens + self.prefill_s(mix)


@quick_dataclass(frozen=True, slots=True)
class Feasibility:
    """The latencies of an empty replica, whether they meet the targets, and the limits for sizing a fleet."""

    ttft_s: float
    """Time to first token of a mean request on an empty replica."""
    itl_s: float
    """Inter-token latency of a single sequence."""
    ttft: bool
    itl: bool
    ttft_limit_s: float
    """The target, or 1.5 times the TTFT of an empty replica if that is more."""
    itl_limit_s: float
    """The target, or 1.25 times the ITL of a single sequence if that is more."""


def feasibility(step: StepTime, mix: Mix, knobs: Knobs) -> Feasibility:
    """Return the feasibility of the targets by the step-time model."""
    itl_s = step.decode_s(1.0, mix.context_tokens)
    ttft_s = step.base_s + step.prefill_s(mix)
    return Feasibility(
        ttft_s,
        itl_s,
        ttft_s < knobs.ttft_target_s,
        itl_s < knobs.itl_target_s,
        max(knobs.ttft_target_s, _TTFT_ROOM * ttft_s),
        max(knobs.itl_target_s, _ITL_ROOM * itl_s),
    )


def slow_share(step: StepTime, mix: Mix, itl_limit_s: float, rate: float) -> float:
    """Return the share of inter-token latencies above `itl_limit_s` at `rate` requests per second.

    A token is late if its step also prefills a prompt that is too long for the limit. Let `left` be the
    seconds of the limit that decoding leaves, and `prefill` those of the mean prompt. With exponentially
    distributed prompt lengths, exp(-left / prefill) of the prompts are too long. Prefills interrupt decoding
    `rate` times per second, and a second has (1 - rate * prefill) / decode decoding steps.
    """
    return _slow_share(step, mix, itl_limit_s)(rate)


def _slow_share(step: StepTime, mix: Mix, itl_limit_s: float) -> Callable[[float], float]:
    """Return `slow_share` as a function of the rate, because `itl_rps` tries seventeen rates."""
    work_s, prefill_s = step.work_s(mix), step.prefill_s(mix)
    output_tokens, context_tokens, base_s = mix.output_tokens, mix.context_tokens, step.base_s

    def share(rate: float) -> float:
        if rate * work_s >= _MAX_UTILISATION:
            return 1.0
        batch = rate * output_tokens * base_s / (1.0 - rate * work_s)
        decode_s = step.decode_s(batch, batch * context_tokens)
        left = itl_limit_s - decode_s
        if left <= 0:
            return 1.0
        long_share = math.exp(-left / prefill_s) if prefill_s > 0 else 0.0
        decoding_share = 1.0 - rate * prefill_s
        return min(1.0, long_share * rate * decode_s / decoding_share) if decoding_share > 0 else 1.0

    return share


def itl_rps(step: StepTime, mix: Mix, knobs: Knobs, kv_cache_tokens: float, interference: float) -> float:
    """Return the requests per second at which one replica keeps its inter-token latencies.

    At rate x the mean step takes base / (1 - x * work), and the batch is x * output tokens * mean step
    (Little's law). The result is the largest rate x under four limits. The utilisation x * work is below
    0.95. The batch fits 0.9 of the KV cache. The batch decodes within `Feasibility.itl_limit_s`. The share of
    late tokens, `slow_share` times `interference`, is at most 1 - percentile.
    """
    work_s = max(step.work_s(mix), 1e-9)
    limited, limit_s = mix.output_tokens > 1.0, feasibility(step, mix, knobs).itl_limit_s
    batch = KV_FILL * kv_cache_tokens / mix.context_tokens if kv_cache_tokens > 0 else math.inf
    decode_one = step.sequence_s(mix)
    if limited and decode_one > 0:
        batch = min(batch, (limit_s - step.base_s) / decode_one)
    high = _MAX_UTILISATION / work_s
    if batch < math.inf:
        high = min(high, batch / (mix.output_tokens * step.base_s + batch * work_s))
    if not limited:
        return high
    late = (1.0 - knobs.ttft_percentile / 100.0) / interference
    share = _slow_share(step, mix, limit_s)
    return _largest(high, lambda rate: share(rate) <= late)


def ttft_rps(step: StepTime, mix: Mix, knobs: Knobs, most_rps: float, replicas: float) -> float:
    """Return the requests per second, up to `most_rps`, at which one of `replicas` keeps its TTFT.

    The TTFT is half a step of waiting, the prefill, and at the percentile a wait behind other prompts. A
    request goes to the replica with the least outstanding prefill, so it waits only if all n are busy. The
    probability is u^(sqrt(2 (n + 1)) - 1) (Sakasegawa's approximation of M/M/n; u for one replica). The mean
    wait is then s / (n (1 - u)), where s is the mean service time. The sum must not exceed
    `Feasibility.ttft_limit_s`.
    """
    limit_s = feasibility(step, mix, knobs).ttft_limit_s
    work_s, missed = step.work_s(mix), 1.0 - knobs.ttft_percentile / 100.0
    steps_s = mix.output_tokens * step.base_s
    decode_one = step.sequence_s(mix)
    prefill_s = step.prefill_s(mix)
    pooled = math.sqrt(2.0 * (replicas + 1.0)) - 1.0

    def holds(rate: float) -> bool:
        decode_s = step.base_s + decode_one * rate * steps_s / (1.0 - rate * work_s)
        service_s = decode_s + prefill_s
        busy = rate * service_s
        if busy >= _MAX_UTILISATION:
            return False
        wait_s = 0.0
        if (waiting := busy**pooled) > missed:
            wait_s = service_s / (replicas * (1.0 - busy)) * math.log(waiting / missed)
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

    `interference` is the measured share of late tokens divided by `slow_share`. `kv_cache_tokens` is the size
    of a replica's KV cache, 0 for no limit.
    """
    return ttft_rps(step, mix, knobs, itl_rps(step, mix, knobs, kv_cache_tokens, interference), replicas)


def _largest(high: float, holds: Callable[[float], bool]) -> float:
    """Return the largest rate up to `high` at which `holds`, which must be false above some rate.

    The result is exact to 2 parts in 100,000 of `high`, and never 0.
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


@quick_dataclass(frozen=True, slots=True)
class Sizing:
    """The learned capacity of a replica for the mean request of one model."""

    step: StepTime
    mix: Mix
    knobs: Knobs
    itl_rps: float
    """Requests per second at which a replica keeps its ITL target; see `itl_rps`."""
    headroom: float = 0.0
    """Replicas in addition to those that the load needs, in units of their square root."""
    by_pool: dict[int, float] = field(default_factory=dict, repr=False, compare=False)
    """A cache of `rps`, because one decision needs the same few capacities many times. None depends on
    `headroom`."""

    @property
    def feasibility(self) -> Feasibility:
        """Whether an empty replica meets the targets, and the limits that fleets are sized for."""
        return feasibility(self.step, self.mix, self.knobs)

    def rps(self, replicas: int) -> float:
        """Return the requests per second of one replica among `replicas`."""
        pool = min(max(replicas, 1), _LARGEST_POOL)
        if pool not in self.by_pool:
            self.by_pool[pool] = ttft_rps(self.step, self.mix, self.knobs, self.itl_rps, pool)
        return self.by_pool[pool]

    def replicas(self, rps: float) -> int:
        """Return the fewest replicas for `rps` requests per second, including headroom."""
        if rps <= 0:
            return 0
        # Each replica of a larger fleet serves more. So the number by a single replica's rate is enough, and
        # the number by the rate of a replica in that fleet is a lower bound.
        enough = self._needed(rps, 1)
        least = self._needed(rps, enough)
        while least < enough:
            middle = (least + enough) // 2
            if self._needed(rps, middle) <= middle:
                enough = middle
            else:
                least = middle + 1
        return enough

    def load(self, rps: float) -> float:
        """Return the replicas that `rps` requests per second fill, including headroom, not rounded up."""
        filled = rps / max(self.rps(self.replicas(rps)), 1e-9)
        return filled + self.headroom * math.sqrt(filled)

    def _needed(self, rps: float, fleet: int) -> int:
        """Return the replicas for `rps` if each serves as much as one of `fleet`."""
        load = rps / max(self.rps(fleet), 1e-9)
        return max(1, round_up(load + self.headroom * math.sqrt(load)))

    def most_rps(self, replicas: int) -> float:
        """Return the requests per second that `replicas` can serve: the inverse of `self.replicas`."""
        headroom = self.headroom
        root = (-headroom + math.sqrt(headroom**2 + 4.0 * replicas)) / 2
        return root * root * self.rps(replicas)


def round_up(replicas: float) -> int:
    """Return `replicas` rounded up, within bounds; 3.0000001 is a rounding error and gives 3."""
    return math.ceil(min(max(replicas, 0.0), MOST_REPLICAS) - 1e-6)
