"""The time of a run, cut into cells and blocks, and resampled: requests close in time are not independent."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from loadtests.columns import Columns, Floats

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


Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Cells:
    """The time of a run, cut into equal cells; a block is a number of cells in a row."""

    count: int
    width_s: float
    block: int
    """Cells of a block."""
    memory: int = 1
    """The block length that differences between the sides ask for. Where it exceeds `block`, blocks of that
    length would have been too few."""
    missed: float = 1.0
    """Factor from the deviation that resampled blocks show to that of the runs, where their past is
    longer."""

    @property
    def block_s(self) -> float:
        """Seconds of a block."""
        return self.block * self.width_s

    @property
    def blocks(self) -> int:
        """That cover the run once."""
        return math.ceil(self.count / self.block)

    def of(self, times: Floats) -> Places:
        """In which cell each of `times` lies, as integers; what lies outside is in the first or the last."""
        places: Places = np.clip(times // self.width_s, 0, self.count - 1).astype(np.int64)
        return places

    def total(self, times: Floats, amounts: Floats) -> Floats:
        """By cell, the `amounts` at `times` added up."""
        return np.bincount(self.of(times), amounts, self.count).astype(np.float64)

    def spread(self, amounts: Floats) -> float:
        """Over how many blocks `amounts`, one a cell, are spread in effect: (sum n)^2 / sum n^2.

        Kish's effective sample size, with what a block holds as its weight: 30 requests of one burst are 1.
        """
        held = np.bincount(np.arange(self.count) // self.block, amounts)
        return float(held.sum() ** 2 / np.square(held).sum()) if held.any() else 0.0


def circular_blocks(rng: np.random.Generator, cells: Cells, draws: int) -> Floats:
    """How often each cell is in each of `draws` resampled runs, (draws, cells).

    The moving-block bootstrap of Künsch, "The jackknife and the bootstrap for general stationary
    observations" (1989), on a circle as in Politis and Romano, "A circular block-resampling procedure for
    stationary data" (1992): without the circle, the first cell would be in one block alone, and a burst there
    in few draws.
    """
    starts = rng.integers(0, cells.count, (draws, cells.blocks))
    rows = np.arange(draws)[:, None] * cells.count
    begun = np.bincount((rows + starts).ravel(), minlength=draws * cells.count).reshape(draws, cells.count)
    total = np.cumsum(np.concatenate((begun[:, cells.count - cells.block :], begun), axis=1), axis=1)
    weights: Floats = (total[:, cells.block :] - total[:, : cells.count]).astype(np.float64)
    return weights


MOST_CELLS = 400
FEWEST_BLOCKS = 10
"""A run has at least this many blocks: longer ones would leave too few to draw from."""
REQUESTS_A_CELL = 2
"""On average, at least: with fewer, cells would be empty more often than not."""


def cut(a: Sequence[Columns], b: Sequence[Columns]) -> Cells:
    """Cells over the longest run, in blocks as long as differences between the sides depend on their past.

    A block has at least the cube root of the cells, the order that Künsch (1989) found best for a variance,
    and is short enough that `FEWEST_BLOCKS` remain.
    """
    ends = [float(one.ended_s.max()) for one in (*a, *b) if len(one.at_s)]
    requests = min(len(one.at_s) for one in (*a, *b))
    number = max(1, min(MOST_CELLS, requests // REQUESTS_A_CELL))
    cells = Cells(number, max([1e-9, *ends]) / number, 1)
    dependences = [
        Dependence.of(_unlike(a, b, cells, lambda columns: columns.ttft_s)),
        Dependence.of(_unlike(a, b, cells, lambda columns: columns.tpot_s)),
    ]
    memory = max(math.ceil(one.block) for one in dependences)
    least, most = math.ceil(number ** (1 / 3)), max(1, number // FEWEST_BLOCKS)
    block = min(most, max(least, memory))
    return Cells(number, cells.width_s, block, memory, max(one.missed(block) for one in dependences))


def _unlike(
    a: Sequence[Columns], b: Sequence[Columns], cells: Cells, column: Callable[[Columns], Floats]
) -> Floats:
    """By cell, how much later B's requests rank than A's among all, on average; 0 where one side has none.

    Ranks, because what never came has one too.
    """
    values = np.concatenate([column(one) for one in (*a, *b)])
    where = cells.of(np.concatenate([one.at_s for one in (*a, *b)]))
    is_a = np.arange(len(values)) < sum(len(one.at_s) for one in a)
    applies = ~np.isnan(values)
    ranks = np.searchsorted(np.sort(values[applies]), values) / max(1, int(applies.sum()))
    mean, count = [], []
    for chosen in (applies & is_a, applies & ~is_a):
        held = np.bincount(where[chosen], minlength=cells.count)
        count.append(held)
        mean.append(np.bincount(where[chosen], ranks[chosen], cells.count) / np.maximum(held, 1))
    return np.where((count[0] > 0) & (count[1] > 0), mean[1] - mean[0], 0.0)
