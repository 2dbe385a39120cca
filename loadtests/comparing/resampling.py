"""Many resampled runs at once: percentiles and ratios of each, from counts by cell."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from loadtests.columns import Floats
from loadtests.comparing.blocks import Cells, circular_blocks

DRAWS = 1000
MOST_BINS = 1200
TAIL = 0.08
"""Share of the observations, the largest, that half of the bins are for: P95 and P99 lie there."""
CONFIDENCE_Z = 1.959964
"""95 % of a normal distribution lie within this many standard deviations."""


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """Which cells, and which runs, each resampled side is made of."""

    cells: Floats
    """(draws, cells): how often each cell is in it."""
    runs: Floats
    """(draws, runs): how often each run is in it."""

    @classmethod
    def of(cls, rng: np.random.Generator, weights: Floats, runs: int) -> Self:
        """The draws of a side with this many `runs`, over the cells that `weights` has drawn.

        R - 1 of R runs are drawn: then the variance of the drawn means is that of means of R runs, where
        drawing R of R would make it too small by (R - 1) / R. Rao and Wu, "Resampling inference with complex
        survey data" (1988).
        """
        if runs == 1:
            return cls(weights, np.ones((len(weights), 1)))
        picked = rng.integers(0, runs, (len(weights), runs - 1))
        times: Floats = (picked[:, :, None] == np.arange(runs)).sum(axis=1).astype(np.float64)
        return cls(weights, times)

    def total(self, by_run: Sequence[Floats]) -> Floats:
        """What the draws come to, (draws, ...), of what each run has by cell, (cells, ...)."""
        if len(by_run) == 1:
            return self.cells @ by_run[0]
        times = self.runs if by_run[0].ndim == 1 else self.runs[:, :, None]
        total = np.zeros((len(self.cells), *by_run[0].shape[1:]))
        for run, amounts in enumerate(by_run):
            total += (self.cells @ amounts) * times[:, run]
        return total


def cell_weights(rng: np.random.Generator, cells: Cells) -> Floats:
    """The cells of `DRAWS` resampled runs."""
    return circular_blocks(rng, cells, DRAWS)


def percentiles_of(
    draws: Draws, values: Sequence[Floats], cells: Sequence[npt.NDArray[np.int64]], shares: Sequence[float]
) -> list[Floats]:
    """The percentiles at `shares` of each draw; NaN where a draw has no observation.

    Observations are put into at most `MOST_BINS` bins of equal counts, half of them for the largest `TAIL`,
    so that 20,000 requests with a million gaps between tokens cost one small matrix product. A bin stands for
    its middle observation: a percentile is off by half a bin, which is 0.08 % of the ranks and 0.007 % in the
    tail. What never came has a bin of its own.

    Args:
        draws: What each resampled side is made of.
        values: By run, the observations, at least one in all.
        cells: By run, the cell of each.
        shares: From 0 to 1.
    """
    ordered = np.sort(np.concatenate(values))
    starts = _bins(ordered)
    middles = ordered[(starts + np.append(starts[1:], len(ordered)) - 1) // 2]
    lowest = ordered[starts]
    counts = []
    for observed, where in zip(values, cells, strict=True):
        bins = np.clip(np.searchsorted(lowest, observed, side="right") - 1, 0, None)
        flat = np.bincount(where * len(starts) + bins, minlength=draws.cells.shape[1] * len(starts))
        counts.append(flat.reshape(draws.cells.shape[1], len(starts)).astype(np.float64))
    below = np.cumsum(draws.total(counts), axis=1)
    return [_at(share, below, middles) for share in shares]


def _bins(ordered: Floats) -> npt.NDArray[np.int64]:
    """Where bins start in `ordered`: never within equal values, and always at the first infinity."""
    count = len(ordered)
    if count > MOST_BINS:
        bulk = np.linspace(0, count * (1 - TAIL), MOST_BINS // 2, endpoint=False)
        tail = np.linspace(count * (1 - TAIL), count, MOST_BINS // 2, endpoint=False)
        places = np.concatenate((bulk, tail)).astype(np.int64)
        finite = int(np.searchsorted(ordered, np.inf))
        places = np.append(places, [finite] if finite < count else [])
    else:
        places = np.arange(count)
    starts = np.searchsorted(ordered, ordered[places.astype(np.int64)], side="left")
    return np.unique(starts).astype(np.int64)


def _at(share: float, below: Floats, middles: Floats) -> Floats:
    """The percentile of each row, as `percentiles.percentile` has it, from counts added up over bins."""
    count = below[:, -1]
    place = share * np.maximum(count - 1, 0)
    low = np.floor(place)
    first = middles[np.argmax(below > low[:, None], axis=1)]
    second = middles[np.argmax(below > np.minimum(low + 1, np.maximum(count - 1, 0))[:, None], axis=1)]
    rest = place - low
    with np.errstate(invalid="ignore"):
        out = np.where((rest == 0) | (first == second), first, first + rest * (second - first))
    return np.where(count > 0, out, np.nan)


def freedom_of(by_run: Sequence[Sequence[float]], drawn: Floats, blocks: int) -> float:
    """Degrees of freedom of what `drawn` tells of the noise.

    With one run on a side, those of the blocks. With several on both, those of the runs and of the blocks,
    weighed by the variance that each part gives, after Satterthwaite, "An approximate distribution of
    estimates of variance components" (1946): v^2 / (v_runs^2 / d_runs + v_blocks^2 / d_blocks).

    Args:
        by_run: By side, the figure of each run alone.
        drawn: Differences in resampled runs.
        blocks: That cover a run.
    """
    within = max(1, blocks - 1)
    if min(map(len, by_run)) < 2:
        return within
    between = sum(len(side) for side in by_run) - len(by_run)
    figures = np.concatenate([np.asarray(side) for side in by_run])
    if not (np.isfinite(figures).all() and np.isfinite(drawn).all()):
        return between
    of_runs = sum(float(np.var(side, ddof=1)) / len(side) for side in by_run)
    of_blocks = max(0.0, float(np.var(drawn)) - of_runs)
    total = of_runs + of_blocks
    return total**2 / (of_runs**2 / between + of_blocks**2 / within) if total > 0 else between


def interval(difference: float, drawn: Floats, wider: float) -> tuple[float, float]:
    """The middle 95 % of `drawn` differences, made `wider` around `difference`.

    Percentiles of few resampled means lie too close together; they are moved away from what was observed by
    the ratio of Student's quantile to the normal one, after the expanded percentile interval of Hesterberg,
    "What Teachers Should Know About the Bootstrap" (2015), and by what blocks miss
    (`dependence.Dependence.missed`).

    Args:
        difference: What was observed.
        drawn: Of each draw, none of them NaN.
        wider: Factor, at least 1. What never came on one side stays that far.
    """
    ordered = np.sort(drawn)
    low = float(ordered[math.floor(0.025 * (len(ordered) - 1))])
    high = float(ordered[math.ceil(0.975 * (len(ordered) - 1))])
    if not math.isfinite(difference):
        return low, high
    return (
        min(difference, difference + wider * (low - difference)),
        max(difference, difference + wider * (high - difference)),
    )


def student_95(freedom: float) -> float:
    """Within how many standard errors 95 % of Student's law lie: within 1 % from 2 degrees of freedom on.

    Abramowitz and Stegun, Handbook of Mathematical Functions (1964), 26.7.5.
    """
    z, n = CONFIDENCE_Z, freedom
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )
