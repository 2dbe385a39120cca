"""The time of a run, cut into cells and blocks, and resampled: requests close in time are not independent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadtests.columns import Columns
from loadtests.comparing.dependence import Dependence
from loadtests.percentiles import Floats

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
