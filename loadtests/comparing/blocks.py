"""Resampling a run in blocks of time, for requests close in time are not independent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadtests.percentiles import Floats

Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Cells:
    """The time of a run, cut into equal cells; blocks are so many cells in a row."""

    count: int
    width_s: float
    block: int
    """Cells of a block."""
    memory: int = 1
    """The block that differences between the sides ask for. Where it is more than `block`, blocks of so many
    would have been too few."""
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
