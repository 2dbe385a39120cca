"""Fit the step-time model to the replicas' steps: weighted least squares with a weak prior."""

from collections.abc import Sequence
from dataclasses import astuple, replace
from operator import itemgetter, mul
from typing import Self

from serve_app.policy.capacity_model import StepTime
from serve_app.wire.quick_dataclass import quick_dataclass

# With these units the four products have a similar size, a few milliseconds, so the fit is well conditioned:
# one step, 10 sequences, 10,000 tokens of KV cache, 1,000 prefill tokens.
_UNITS = (1.0, 10.0, 10_000.0, 1_000.0)
# Before the first measurement: an A100 with a 7B model (11.5 ms + 0.12 ms per sequence + 0.12 us per KV
# token + 1 s per 20,000 prefill tokens), in the units above.
_PRIOR = (0.0115, 0.0012, 0.0012, 0.05)
# A coefficient of 0 was too small to measure. Its uncertainty is this share of the base, in the units above.
# The smallest coefficient of the A100 is twice as large.
_LEAST_KNOWN = 0.05
# The prior's coefficients are known within a factor of two, and a step has 2 ms of noise. One second of steps
# outweighs the prior.
_PRIOR_NOISE_S = 0.002
# Older steps fade over this many steps in the same direction. Loads vary in four directions, so this is about
# ten minutes of one busy replica at 60 steps per second.
_MEMORY_STEPS = 10_000.0
_SIZE = 4
_GROUPS = 4
_MIN_BASE_S = 1e-5
_PRIOR_WEIGHT = tuple((_PRIOR_NOISE_S / value) ** 2 for value in _PRIOR)


def _diagonal(weights: Sequence[float]) -> tuple[float, ...]:
    """Return the normal equations of a prior with independent coefficients."""
    return tuple(weights[row] if row == column else 0.0 for row in range(_SIZE) for column in range(_SIZE))


@quick_dataclass(frozen=True, slots=True)
class StepTimeFit:
    """The normal equations of the steps seen, added to those of the prior. Coefficients are never negative.

    Old steps fade only in the direction of new information (directional forgetting). Under a constant load
    all steps are similar and cannot separate the coefficients. If everything faded, the coefficients would
    drift back to the prior, and the capacity and the number of replicas would drift too.
    """

    gram: tuple[float, ...] = _diagonal(_PRIOR_WEIGHT)
    moment: tuple[float, ...] = tuple(map(mul, _PRIOR_WEIGHT, _PRIOR))
    steps: float = 0.0
    """Steps that the fit is based on."""

    @classmethod
    def starting_with(cls, step: StepTime) -> Self:
        """Return a fit without steps whose prior is `step`, known within a factor of two."""
        prior = list(map(mul, astuple(step), _UNITS))
        weights = [(_PRIOR_NOISE_S / max(value, _LEAST_KNOWN * prior[0])) ** 2 for value in prior]
        return cls(_diagonal(weights), tuple(map(mul, weights, prior)))

    def learn(self, samples: list[tuple[float, float, float, float, float]]) -> Self:
        """Return the fit with samples added: (steps, step seconds, batch, KV tokens, prefill tokens) each."""
        if not samples:
            return self
        g, m = list(self.gram), list(self.moment)
        total = self.steps
        for steps, step_s, *loads in _merge_samples(samples):
            x = (1.0, loads[0] / _UNITS[1], loads[1] / _UNITS[2], loads[2] / _UNITS[3])
            projected = [sum(map(mul, g[row * _SIZE : (row + 1) * _SIZE], x)) for row in range(_SIZE)]
            share = min(steps / _MEMORY_STEPS, 0.5)
            fade = share / sum(map(mul, projected, x))
            known = sum(map(mul, m, x))
            for row in range(_SIZE):
                added, faded = steps * x[row], fade * projected[row]
                for column in range(_SIZE):
                    g[row * _SIZE + column] += added * x[column] - faded * projected[column]
                m[row] += added * step_s - faded * known
            total = total * (1.0 - share) + steps
        return replace(self, gram=tuple(g), moment=tuple(m), steps=total)

    def step_time(self) -> StepTime:
        """Return the coefficients, which equal the prior's until steps say otherwise."""
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
            # A coefficient cannot be negative. Set it to 0 and fit the other coefficients again.
            del free[lowest]
        scaled = [value / unit for value, unit in zip(values, _UNITS, strict=True)]
        return StepTime(max(scaled[0], _MIN_BASE_S), scaled[1], scaled[2], scaled[3])


def _merge_samples(samples: list[tuple[float, float, float, float, float]]) -> list[tuple[float, ...]]:
    """Merge samples with similar prefill into at most `_GROUPS` weighted means.

    The step-time model is linear, so it also holds for means, and a hundred replicas cost no more than four.
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
    """Solve a positive definite system by Gaussian elimination; fading keeps the pivots away from 0."""
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
