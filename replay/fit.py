"""Fitting the step-time model to steps that an engine took. Pure.

    step = base + per_sequence * batch + per_kv_token * KV tokens + per_prefill_token * prefill tokens

The fit minimises squares of relative errors, so a decoding step of a few milliseconds counts as much as a
prefill of a second. No coefficient is negative. Outliers do not count (Tukey's biweight, by iteratively
reweighted least squares).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from serve_app.policy.capacity_model import StepTime
from traces.trace import Floats

LEAST_SAMPLES = 8
"""Twice the coefficients: with fewer samples, an outlier looks like a coefficient."""
COEFFICIENTS = ("base_s", "per_sequence_s", "per_kv_token_s", "per_prefill_token_s")
"""The fields of `StepTime`, in the order of its constructor."""
_LOADS = ("", "batch", "KV tokens", "prefill tokens")

_LEAST_BASE_S = 1e-5
# The part of a load that no mixture of the others makes up determines its coefficient. If that part is below
# 2 %, noise of 1 % becomes half of the coefficient.
_LEAST_SHARE = 0.02
# KV tokens often grow with the batch, and matter least, so they are the first to lose their coefficient.
_FIRST_TO_GO = (2, 1, 3)
_HUBER = 1.345
_TUKEY = 4.685  # both at 95 % efficiency under Gaussian noise
_HUBER_TURNS = 10
_MOST_TURNS = 100
_SETTLED = 1e-9


class FitError(ValueError):
    """Samples that do not determine the step time; the message names the coefficients."""


@dataclass(frozen=True, slots=True)
class StepSample:
    """A step, or the means over several steps: the model is linear, so it holds for means too."""

    step_s: float
    batch: float
    """Sequences that decoded."""
    kv_tokens: float
    prefill_tokens: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Fit:
    """The step-time model, and its errors."""

    step: StepTime
    standard_error: StepTime
    """The standard error of each coefficient."""
    median_relative_error: float
    p90_relative_error: float
    """The 90th percentile of |model - measured| / measured, over all samples by weight, with outliers."""
    samples: int
    outliers: int
    """Samples that did not count."""


def fit(samples: Sequence[StepSample]) -> Fit:
    """The step time that fits `samples` best; their loads should be as different as possible.

    Raises FitError for too few samples, for a sample that is not finite and positive, and for a load that
    never varied by itself.
    """
    x, y, weight = _arrays(samples)
    _check_loads(x / y[:, None], weight)
    values = np.zeros(4)
    scale, robust = y, np.ones_like(y)
    for turn in range(_MOST_TURNS):
        before = values
        values = _non_negative(x / scale[:, None], y / scale, weight * robust)
        values[0] = max(values[0], _LEAST_BASE_S)
        model = x @ values
        # Relative to the model, not to the measurement: otherwise long samples would count less, and the fit
        # would be too fast by the square of the noise.
        residual = (y - model) / model
        # 1.4826 medians of |error| are one standard deviation of Gaussian noise.
        spread = max(1.4826 * _quantile(np.abs(residual), weight, 0.5), 1e-12)
        robust = _weights(residual / spread, turn)
        scale = np.clip(model, 0.1 * y, 10.0 * y)
        if turn > _HUBER_TURNS and np.allclose(values, before, rtol=_SETTLED, atol=0.0):
            break

    error = np.abs(x @ values - y) / y
    deviations = _standard_errors(x / scale[:, None], residual, weight * robust)
    return Fit(
        StepTime(*map(float, values)),
        StepTime(*map(float, deviations)),
        _quantile(error, weight, 0.5),
        _quantile(error, weight, 0.9),
        len(samples),
        int((robust == 0.0).sum()),
    )


def _arrays(samples: Sequence[StepSample]) -> tuple[Floats, Floats, Floats]:
    if len(samples) < LEAST_SAMPLES:
        raise FitError(f"{len(samples)} samples of steps: at least {LEAST_SAMPLES} are needed")
    for index, sample in enumerate(samples):
        loads = (sample.batch, sample.kv_tokens, sample.prefill_tokens)
        positive = (sample.step_s, sample.weight)
        if not all(map(math.isfinite, (*loads, *positive))) or min(loads) < 0 or min(positive) <= 0:
            raise FitError(
                f"samples[{index}] = {sample}: step_s and weight must be finite and above 0, "
                "batch, kv_tokens and prefill_tokens finite and at least 0"
            )
    x = np.array([(1.0, s.batch, s.kv_tokens, s.prefill_tokens) for s in samples])
    return x, np.array([s.step_s for s in samples]), np.array([s.weight for s in samples])


def _check_loads(columns: Floats, weight: Floats) -> None:
    """Raise FitError if the samples do not determine every coefficient."""
    scaled = columns * np.sqrt(weight)[:, None]
    norms = np.linalg.norm(scaled, axis=0)
    scaled = scaled / np.where(norms > 0, norms, 1.0)
    left = [0, 1, 2, 3]

    def is_mixture(column: int) -> bool:
        others = scaled[:, [other for other in left if other != column]]
        best, *_ = np.linalg.lstsq(others, scaled[:, column], rcond=None)
        return float(np.linalg.norm(scaled[:, column] - others @ best)) < _LEAST_SHARE

    while (mixture := next((c for c in _FIRST_TO_GO if c in left and is_mixture(c)), None)) is not None:
        left.remove(mixture)
    gone = [column for column in range(4) if column not in left]
    if gone:
        loads = " and ".join(_LOADS[column] for column in gone)
        names = " and ".join(COEFFICIENTS[column] for column in gone)
        raise FitError(f"{loads} never varied by themselves, so {names} cannot be fitted: vary the load more")


def _non_negative(a: Floats, b: Floats, weight: Floats) -> Floats:
    """Least squares with no negative solution: the best of the few sets of columns that could be it.

    The solution is the plain one over the columns where it is not 0, and there are at most 15 such sets.
    """
    root = np.sqrt(weight)
    a, b = a * root[:, None], b * root
    norms = np.linalg.norm(a, axis=0)
    a = a / norms
    best, least = np.zeros(a.shape[1]), math.inf
    for size in range(a.shape[1], 0, -1):
        for columns in combinations(range(a.shape[1]), size):
            found, *_ = np.linalg.lstsq(a[:, columns], b, rcond=None)
            if (found < 0).any():
                continue
            rest = float(np.sum((b - a[:, columns] @ found) ** 2))
            if rest < least:
                best, least = np.zeros(a.shape[1]), rest
                best[list(columns)] = found
        if least < math.inf and size == a.shape[1]:
            break  # no bound is met: nothing smaller fits better
    return np.asarray(best / norms)


def _weights(deviations: Floats, turn: int) -> Floats:
    """Huber's weights first, which converge from anywhere; then Tukey's, which ignore outliers."""
    size = np.abs(deviations)
    if turn < _HUBER_TURNS:
        return np.asarray(_HUBER / np.maximum(size, _HUBER))
    return np.asarray(np.where(size < _TUKEY, (1.0 - (size / _TUKEY) ** 2) ** 2, 0.0))


def _standard_errors(a: Floats, residual: Floats, weight: Floats) -> Floats:
    """The standard errors of the coefficients, as for weighted least squares."""
    norms = np.linalg.norm(a, axis=0)
    scaled = a / norms
    counted = max(float((weight > 0).sum()) - a.shape[1], 1.0)
    total = float(weight.sum())
    variance = float(np.sum(weight * residual**2)) / total * len(weight) / counted
    information = scaled.T @ (scaled * (weight / total * len(weight))[:, None])
    deviations = np.sqrt(np.maximum(np.diag(np.linalg.pinv(information)), 0.0) * variance) / norms
    return np.asarray(deviations)


def _quantile(values: Floats, weight: Floats, share: float) -> float:
    """The value below which `share` of the weight lies."""
    order = np.argsort(values)
    sums = np.cumsum(weight[order])
    at = int(np.searchsorted(sums, share * sums[-1]))
    return float(values[order[min(at, len(order) - 1)]])
