"""How much a series depends on its own past, and what blocks of it miss of that."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from loadtests.percentiles import Floats

MOST_MISSED = 2.0
"""Bound on the factor by which intervals are made wider: the figures it comes from are noisy themselves."""


@dataclass(frozen=True, slots=True, eq=False)
class Dependence:
    """The autocovariances of a series, and what follows from them."""

    covariance: Floats
    """By lag, from 0 on; empty where the series never changes."""
    total: float
    """All of them added up over negative and positive lags, without those that are negligible: the variance
    of the mean, times the length."""
    block: float
    """The block length at which resampled blocks tell the variance of the mean best."""

    @classmethod
    def of(cls, series: Floats) -> Self:
        """The dependence of `series`, which has one element per cell of time.

        Politis and White, "Automatic block-length selection for the dependent bootstrap" (2004), with the
        correction of Patton, Politis and White (2009), for blocks on a circle:
        b = (2 G^2 / D)^(1/3) n^(1/3) with D = 4/3 g(0)^2. g(0) is the sum of the autocovariances and G that
        of their products with the lag, under a flat-top window twice as wide as the lag from which on
        autocorrelations are negligible.
        """
        count = len(series)
        centred = series - series.mean()
        variance = float(np.square(centred).mean())
        if count < 4 or variance <= 1e-18:
            return cls(np.zeros(0), 0.0, 1.0)
        quiet_for = max(5, math.ceil(math.sqrt(math.log10(count))))
        longest = min(count - 1, math.ceil(math.sqrt(count)) + quiet_for)
        covariance = _covariance(centred)
        limit = 2 * math.sqrt(math.log10(count) / count)
        loud = np.abs(covariance[1 : longest + 1] / variance) >= limit
        width = max(1, 2 * _last_before_quiet(loud, quiet_for))
        lags = np.arange(1, min(width, count - 1) + 1)
        window = np.clip(2 * (1 - lags / width), 0.0, 1.0)
        total = variance + 2 * float((window * covariance[lags]).sum())
        slope = 2 * float((window * lags * covariance[lags]).sum())
        if total <= 0:
            return cls(covariance, 0.0, 1.0)
        block = float((2 * slope**2 / (4 / 3 * total**2) * count) ** (1 / 3))
        return cls(covariance, total, max(1.0, block))

    def missed(self, block: int) -> float:
        """Factor from the deviation that blocks of `block` elements show to that of the series, 1 to 2.

        Blocks see an autocovariance at lag k only with weight 1 - k / block: with blocks of 10 s, a load that
        has forgotten all but 1/e of itself after 4 s shows 63 % of its variance, and the factor is 1.26.
        """
        if self.total <= 0:
            return 1.0
        lags = np.arange(1, min(block, len(self.covariance)))
        seen = float(self.covariance[0] + 2 * ((1 - lags / block) * self.covariance[lags]).sum())
        return min(MOST_MISSED, max(1.0, math.sqrt(self.total / seen))) if seen > 0 else MOST_MISSED


def _covariance(centred: Floats) -> Floats:
    """The autocovariances by lag, from the power spectrum, padded so that nothing wraps around."""
    count = len(centred)
    size = 1 << (2 * count - 1).bit_length()
    covariance: Floats = np.fft.irfft(np.abs(np.fft.rfft(centred, size)) ** 2, size)[:count] / count
    return covariance


def _last_before_quiet(loud: npt.NDArray[np.bool_], quiet_for: int) -> int:
    """The last lag before the first `quiet_for` in a row that are negligible; 0 for none."""
    quiet = 0
    for place, one in enumerate(loud.tolist()):
        quiet = 0 if one else quiet + 1
        if quiet == quiet_for:
            return int(place + 1 - quiet_for)
    return len(loud) - quiet
