"""What one replica can carry: a model of the engine's step time, learned from the steps it takes.

A step of continuous batching takes

    step = base + per_sequence * batch + per_kv_token * KV tokens + per_prefill_token * prefill tokens

seconds. The four coefficients are fitted to what replicas report of their steps, by weighted least
squares with a weak prior, and are never negative. From them follows how many requests a second a
replica can take before TTFT or inter-token latency miss their targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter, mul

from serve_app.settings.knobs import Knobs

# Units that bring the four products to the same size, a few milliseconds, which keeps the fit well
# conditioned: one step, 10 sequences, 10,000 tokens of KV cache, 1,000 prefill tokens.
_UNITS = (1.0, 10.0, 10_000.0, 1_000.0)
# Before the first measurement: an A100 with a 7B model (11.5 ms + 0.12 ms a sequence + 0.12 us a KV
# token + 1 s per 20,000 prefill tokens), in the units above.
_PRIOR = (0.0115, 0.0012, 0.0012, 0.05)
# A coefficient given as 0 is one too small to be measured, not one that cannot be: it is known to such a
# share of the base, in the units above. The smallest of the A100's is twice that.
_LEAST_KNOWN = 0.05
# The prior counts as much as the scatter it would explain: 2 ms of noise against coefficients known
# within a factor of two. A single second of steps outweighs it.
_PRIOR_NOISE_S = 0.002
# Steps after which old ones have faded in the direction of the new. Loads vary in four directions, so that
# is about ten minutes of one busy replica at 60 steps a second.
_MEMORY_STEPS = 10_000.0
_SIZE = 4
_GROUPS = 4
_MAX_UTILISATION = 0.95
_KV_FILL = 0.9
"""Share of the KV cache to plan for; beyond it vLLM starts to preempt."""
_MIN_BASE_S = 1e-5


@dataclass(frozen=True, slots=True)
class Mix:
    """The requests of one model, on average. Tokens."""

    prompt_tokens: float = 512.0
    computed_share: float = 1.0
    """Share of the prompt tokens that is prefilled rather than found in the prefix cache."""
    output_tokens: float = 128.0

    @property
    def prefill_tokens(self) -> float:
        """Tokens prefilled for one request."""
        return self.prompt_tokens * self.computed_share

    @property
    def context_tokens(self) -> float:
        """KV cache tokens of one request, averaged over its decoding."""
        return self.prompt_tokens + self.output_tokens / 2


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds: `base_s` a step, and what each sequence, KV token and prefill token adds."""

    base_s: float
    per_sequence_s: float
    per_kv_token_s: float
    per_prefill_token_s: float

    def decode_s(self, batch: float, kv_tokens: float) -> float:
        """A step that only decodes."""
        return self.base_s + self.per_sequence_s * batch + self.per_kv_token_s * kv_tokens

    def work_s(self, mix: Mix) -> float:
        """Engine time one request takes beyond the base of the steps it shares."""
        decode = self.per_sequence_s + self.per_kv_token_s * mix.context_tokens
        return decode * mix.output_tokens + self.per_prefill_token_s * mix.prefill_tokens


_PRIOR_WEIGHT = tuple((_PRIOR_NOISE_S / value) ** 2 for value in _PRIOR)
"""The normal equations of the prior are diagonal: each coefficient is known by itself."""


@dataclass(frozen=True, slots=True)
class ServiceModel:
    """The fit: normal equations of the steps seen over those of the prior.

    Old steps fade only in the direction in which new ones tell something (directional forgetting). Under
    a constant load all steps are alike; were everything to fade, the coefficients that such steps cannot
    tell apart would drift back to the prior, and with them the capacity, and with it the replicas.
    """

    gram: tuple[float, ...] = tuple(
        _PRIOR_WEIGHT[row] if row == column else 0.0 for row in range(_SIZE) for column in range(_SIZE)
    )
    moment: tuple[float, ...] = tuple(
        weight * value for weight, value in zip(_PRIOR_WEIGHT, _PRIOR, strict=True)
    )
    steps: float = 0.0
    """Steps the fit rests on."""

    @classmethod
    def starting_with(cls, step: StepTime) -> ServiceModel:
        """The fit that has seen no step and takes a replica for `step`, within a factor of two."""
        values = (step.base_s, step.per_sequence_s, step.per_kv_token_s, step.per_prefill_token_s)
        prior = [value * unit for value, unit in zip(values, _UNITS, strict=True)]
        weights = [(_PRIOR_NOISE_S / max(value, _LEAST_KNOWN * prior[0])) ** 2 for value in prior]
        return cls(
            tuple(weights[row] if row == column else 0.0 for row in range(_SIZE) for column in range(_SIZE)),
            tuple(weight * value for weight, value in zip(weights, prior, strict=True)),
        )

    def learn(self, samples: list[tuple[float, float, float, float, float]]) -> ServiceModel:
        """The fit with `samples` added: (steps, step seconds, batch, KV tokens, prefill tokens) each."""
        if not samples:
            return self
        g, m = list(self.gram), list(self.moment)
        total = self.steps
        for steps, step_s, *loads in _merged(samples):
            x = (1.0, loads[0] / _UNITS[1], loads[1] / _UNITS[2], loads[2] / _UNITS[3])
            told = [sum(map(mul, g[row * _SIZE : (row + 1) * _SIZE], x)) for row in range(_SIZE)]
            share = min(steps / _MEMORY_STEPS, 0.5)
            fade = share / sum(map(mul, told, x))
            known = sum(map(mul, m, x))
            for row in range(_SIZE):
                added, faded = steps * x[row], fade * told[row]
                for column in range(_SIZE):
                    g[row * _SIZE + column] += added * x[column] - faded * told[column]
                m[row] += added * step_s - faded * known
            total = total * (1.0 - share) + steps
        return ServiceModel(tuple(g), tuple(m), total)

    def step_time(self) -> StepTime:
        """The coefficients; the prior's where nothing has been seen."""
        free = list(range(_SIZE))
        values = [0.0] * _SIZE
        while free:
            matrix = [[self.gram[row * _SIZE + column] for column in free] for row in free]
            solved = _solve(matrix, [self.moment[row] for row in free])
            lowest = min(range(len(free)), key=lambda i: solved[i])
            if solved[lowest] >= 0:
                for index, value in zip(free, solved, strict=True):
                    values[index] = value
                break
            # A coefficient cannot be negative: take it as 0 and fit the others again.
            del free[lowest]
        scaled = [value / unit for value, unit in zip(values, _UNITS, strict=True)]
        return StepTime(max(scaled[0], _MIN_BASE_S), scaled[1], scaled[2], scaled[3])


def _merged(samples: list[tuple[float, float, float, float, float]]) -> list[tuple[float, ...]]:
    """At most `_GROUPS` samples: weighted means of those alike in prefill. The law is linear, so it holds
    for means too, and a hundred replicas cost no more than four.
    """
    if len(samples) <= _GROUPS:
        return list(samples)
    ordered = sorted(samples, key=itemgetter(4))
    size = -(-len(ordered) // _GROUPS)
    merged = []
    for start in range(0, len(ordered), size):
        weights, *columns = zip(*ordered[start : start + size], strict=True)
        total = sum(weights)
        merged.append((total, *(sum(map(mul, weights, column)) / total for column in columns)))
    return merged


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    """Gaussian elimination of a positive definite system; what fades keeps the pivots away from 0."""
    size = len(right)
    rows = [[*line, value] for line, value in zip(matrix, right, strict=True)]
    for pivot in range(size):
        head = rows[pivot]
        for below in range(pivot + 1, size):
            factor = rows[below][pivot] / head[pivot]
            if factor:
                rows[below] = [a - factor * b for a, b in zip(rows[below], head, strict=True)]
    solved = [0.0] * size
    for row in range(size - 1, -1, -1):
        rest = sum(rows[row][column] * solved[column] for column in range(row + 1, size))
        solved[row] = (rows[row][size] - rest) / rows[row][row]
    return solved


@dataclass(frozen=True, slots=True)
class Feasibility:
    """Whether a replica with nothing else to do meets the targets, and by how much it misses."""

    ttft_s: float
    """First token of a mean request on an empty replica."""
    itl_s: float
    """Inter-token latency of a single sequence."""
    ttft: bool
    itl: bool


def feasibility(step: StepTime, mix: Mix, knobs: Knobs) -> Feasibility:
    """What the model says of an empty replica."""
    decode_s = step.decode_s(1.0, mix.context_tokens)
    ttft_s = step.base_s + step.per_prefill_token_s * mix.prefill_tokens
    return Feasibility(ttft_s, decode_s, ttft_s < knobs.ttft_target_s, decode_s < knobs.itl_target_s)


def slow_share(step: StepTime, mix: Mix, itl_target_s: float, rate: float) -> float:
    """The share of inter-token latencies above `itl_target_s` on a replica with `rate` requests a second.

    A token comes late when its step also prefills a prompt too long for the target. With prompt lengths
    spread as an exponential law of their mean, exp(-left / prefill) of them are: `left` seconds of the
    target remain beside decoding, the mean prompt takes `prefill`. Such steps interrupt decoding `rate`
    times a second, and a second has (1 - rate * prefill) / decode decoding steps.
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
    """Requests a second at which one replica keeps its inter-token latencies, however many there are.

    The largest rate x with a utilisation x * work below 0.95; the mean step is then base / (1 - x * work),
    and the batch x * output tokens * mean step (Little's law). Its tokens fit 0.9 of the KV cache, it
    decodes within the target, and at most 1 - percentile of its tokens come late because their step also
    prefills: `slow_share` times `interference`. A target that a single sequence misses is left out.
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
    """Requests a second, up to `most_rps`, at which one of `replicas` keeps its time to first token.

    At the percentile that is half a step of waiting, the prefill, and the wait behind other prompts. A
    request goes to the replica with the least prefill outstanding, so it waits only where all n are busy:
    with probability u^(sqrt(2 (n + 1)) - 1) (Sakasegawa's approximation of M/M/n; u for one replica), and
    then for s / (n (1 - u)) on average, s being the mean service. A target that an empty replica misses
    is left out: no number of replicas would meet it.
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
    """Requests a second one of `replicas` can take with TTFT and inter-token latency within their targets.

    `interference` is what was measured of late tokens over what `slow_share` says; `kv_cache_tokens` are
    those that a replica has room for, 0 for no limit.
    """
    return ttft_rps(step, mix, knobs, itl_rps(step, mix, knobs, kv_cache_tokens, interference), replicas)


def _largest(high: float, holds: Callable[[float], bool]) -> float:
    """The largest rate up to `high` at which a condition holds that fails from some rate on.

    To 2 parts in 100,000 of `high`, and never 0.
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
