"""Percentiles in which what never came counts as longest."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

NEVER = math.inf
"""The latency of what never came. Reports say "never"."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Percentiles:
    """What a set of latencies comes to, seconds. `NEVER` (infinity) where it reaches what never came."""

    count: int
    """Measured, those that never came included."""
    never: int
    """How many of these never came."""
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Floats) -> Self | None:
        """The percentiles of `values`, in any order and none of them NaN; None if there are none."""
        if not len(values):
            return None
        ordered = np.sort(values)
        p50, p90, p95, p99 = (percentile(ordered, at) for at in (0.50, 0.90, 0.95, 0.99))
        return cls(
            count=len(ordered),
            never=int(np.count_nonzero(np.isinf(ordered))),
            mean=float(ordered.mean()),
            p50=p50,
            p90=p90,
            p95=p95,
            p99=p99,
            max=float(ordered[-1]),
        )


def percentile(ordered: Floats | Sequence[float], at: float) -> float:
    """The value below which a share `at` (0 to 1) lies, in a straight line between the two nearest.

    Definition 7 of Hyndman and Fan, "Sample Quantiles in Statistical Packages" (1996), which numpy has too;
    but between a finite value and infinity it is infinity, where numpy's would be NaN for the value itself.

    Args:
        ordered: In rising order, at least one, none of them NaN.
        at: From 0 to 1.
    """
    place = at * (len(ordered) - 1)
    low = math.floor(place)
    below, above = float(ordered[low]), float(ordered[min(low + 1, len(ordered) - 1)])
    share = place - low
    if share == 0.0 or below == above:
        return below
    return below + share * (above - below)
