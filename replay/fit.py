"""Fitting the step-time law to steps that an engine took. Pure.

    step = base + per_sequence * batch + per_kv_token * KV tokens + per_prefill_token * prefill tokens

Squares of relative errors are least, so that a decoding step of a few milliseconds counts as much as a
prefill of a second; no coefficient is negative; a few steps that something else held up do not count
(Tukey's biweight, by iteratively reweighted least squares).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from serve_app.policy.capacity_model import StepTime
from traces.trace import Floats

LEAST_SAMPLES = 8
"""Twice the coefficients: with fewer, an outlier cannot be told from the law."""
COEFFICIENTS = ("base_s", "per_sequence_s", "per_kv_token_s", "per_prefill_token_s")
"""The fields of `StepTime`, in the order of its constructor."""
_LOADS = ("", "batch", "KV tokens", "prefill tokens")

_LEAST_BASE_S = 1e-5
# A load is told from the others by the part of it that no mixture of them makes up. Below 2 % of it, one
# per cent of noise becomes half of the coefficient.
_LEAST_SHARE = 0.02
# KV tokens grow with the batch more often than anything else is alike, and matter least.
_HELD_FIRST = (2, 1, 3)
_HUBER = 1.345
_TUKEY = 4.685  # both at 95 % efficiency under Gaussian noise
_HUBER_TURNS = 10
_MOST_TURNS = 100
_SETTLED = 1e-9


class FitError(ValueError):
    """Samples that do not determine the step time; the message says which part."""


@dataclass(frozen=True, slots=True)
class StepSample:
    """A step, or the means over several: the law is linear, so it holds for means too."""

    step_s: float
    batch: float
    """Sequences that decoded."""
    kv_tokens: float
    prefill_tokens: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Fit:
    """The law, and how well it holds."""

    step: StepTime
    standard_error: StepTime
    """The standard error of each coefficient; 0 for one that was kept from the prior."""
    median_relative_error: float
    p90_relative_error: float
    """The 90th percentile of |law - measured| / measured, over all samples by weight, outliers included."""
    samples: int
    outliers: int
    """Samples among them that did not count."""
    kept: tuple[str, ...] = ()
    """Coefficients that the samples do not determine, taken from the prior."""


def fit(samples: Sequence[StepSample], prior: StepTime | None = None) -> Fit:
    """The step time that fits `samples` best.

    Args:
        samples: Steps under loads as different as possible.
        prior: Where a load never varied by itself, its coefficient is taken from here.

    Raises:
        FitError: for too few samples, for one that is not finite and positive, or for loads that never
            varied where there is no prior.
    """
    x, y, weight = _arrays(samples)
    held = _untold(x / y[:, None], weight)
    if held and prior is None:
        raise FitError(_untold_text(held))
    free = [column for column in range(4) if column not in held]
    values = np.zeros(4)
    if prior is not None:
        known = (prior.base_s, prior.per_sequence_s, prior.per_kv_token_s, prior.per_prefill_token_s)
        values[held] = np.array(known)[held]
    own = y - x[:, held] @ values[held]

    scale, robust = y, np.ones_like(y)
    for turn in range(_MOST_TURNS):
        before = values.copy()
        values[free] = _non_negative(x[:, free] / scale[:, None], own / scale, weight * robust)
        values[0] = max(values[0], _LEAST_BASE_S)
        law = x @ values
        # Relative to the law rather than to the measurement: that would favour samples that came out
        # long, and with them a law that is too fast by the square of the noise.
        residual = (y - law) / law
        # 1.4826 medians of |error| are one standard deviation of Gaussian noise.
        spread = max(1.4826 * _quantile(np.abs(residual), weight, 0.5), 1e-12)
        robust = _weights(residual / spread, turn)
        scale = np.clip(law, 0.1 * y, 10.0 * y)
        if turn > _HUBER_TURNS and np.allclose(values, before, rtol=_SETTLED, atol=0.0):
            break

    error = np.abs(x @ values - y) / y
    deviations = _standard_errors(x, free, scale, residual, weight * robust)
    return Fit(
        StepTime(*map(float, values)),
        StepTime(*map(float, deviations)),
        _quantile(error, weight, 0.5),
        _quantile(error, weight, 0.9),
        len(samples),
        int((robust == 0.0).sum()),
        tuple(COEFFICIENTS[column] for column in sorted(held)),
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


def _untold(columns: Floats, weight: Floats) -> list[int]:
    """The indices of coefficients that these samples cannot tell from the others."""
    scaled = columns * np.sqrt(weight)[:, None]
    norms = np.linalg.norm(scaled, axis=0)
    scaled = scaled / np.where(norms > 0, norms, 1.0)
    held: list[int] = []
    while True:
        for column in _HELD_FIRST:
            if column in held:
                continue
            others = [other for other in range(4) if other != column and other not in held]
            best, *_ = np.linalg.lstsq(scaled[:, others], scaled[:, column], rcond=None)
            rest = scaled[:, column] - scaled[:, others] @ best
            if float(np.linalg.norm(rest)) < _LEAST_SHARE:
                held.append(column)
                break
        else:
            return held


def _untold_text(held: list[int]) -> str:
    columns = sorted(held)
    loads = " and ".join(_LOADS[column] for column in columns)
    names = " and ".join(COEFFICIENTS[column] for column in columns)
    return f"{loads} never varied by themselves, so {names} cannot be told: vary the load more"


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
    """Huber's weights first, which find the law from anywhere; then Tukey's, which let go of outliers."""
    size = np.abs(deviations)
    if turn < _HUBER_TURNS:
        return np.asarray(_HUBER / np.maximum(size, _HUBER))
    return np.asarray(np.where(size < _TUKEY, (1.0 - (size / _TUKEY) ** 2) ** 2, 0.0))


def _standard_errors(x: Floats, free: list[int], scale: Floats, residual: Floats, weight: Floats) -> Floats:
    """The standard errors of the free coefficients, as for weighted least squares."""
    a = x[:, free] / scale[:, None]
    norms = np.linalg.norm(a, axis=0)
    scaled = a / norms
    counted = max(float((weight > 0).sum()) - len(free), 1.0)
    total = float(weight.sum())
    variance = float(np.sum(weight * residual**2)) / total * len(weight) / counted
    told = scaled.T @ (scaled * (weight / total * len(weight))[:, None])
    errors = np.zeros(4)
    errors[free] = np.sqrt(np.maximum(np.diag(np.linalg.pinv(told)), 0.0) * variance) / norms
    return errors


def _quantile(values: Floats, weight: Floats, share: float) -> float:
    """The value below which `share` of the weight lies."""
    order = np.argsort(values)
    sums = np.cumsum(weight[order])
    at = int(np.searchsorted(sums, share * sums[-1]))
    return float(values[order[min(at, len(order) - 1)]])
