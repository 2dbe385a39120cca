"""Percentiles of one run, and medians, spreads and ratios over rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


def percentile(ascending: Sequence[float], percent: float) -> float:
    """Linear interpolation between closest ranks (numpy's default) of values sorted ascending."""
    if not ascending:
        raise ValueError("no values to take a percentile of")
    at = (len(ascending) - 1) * percent / 100
    low = math.floor(at)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (ascending[high] - ascending[low]) * (at - low)


@dataclass(frozen=True, slots=True)
class Spread:
    """A value over several rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Median, minimum and maximum. ValueError on no values."""
        ascending = sorted(values)
        return cls(percentile(ascending, 50), ascending[0], ascending[-1])


def paired_ratios(values: Sequence[float], base: Sequence[float]) -> list[float]:
    """Round by round, `values` over `base`: what drifts slowly on the machine cancels out."""
    return [value / other for value, other in zip(values, base, strict=True)]
