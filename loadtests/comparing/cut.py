"""Cutting the time of runs into cells and blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from loadtests.columns import Columns
from loadtests.comparing.blocks import Cells
from loadtests.comparing.dependence import Dependence
from loadtests.percentiles import Floats

MOST_CELLS = 400
FEWEST_BLOCKS = 10
"""Of a run: longer blocks would leave too few to draw from."""
REQUESTS_A_CELL = 2
"""On average, at least: with fewer, cells would be empty more often than not."""


def cut(a: Sequence[Columns], b: Sequence[Columns]) -> Cells:
    """Cells over the longest run, in blocks as long as differences between the sides depend on their past.

    A block has at least the cube root of the cells, the order that Künsch (1989) found best for a variance,
    and at most so many that `FEWEST_BLOCKS` remain.
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
