import numpy as np
import pytest

from loadtests.columns import Floats
from loadtests.comparing.blocks import MOST_MISSED, Cells, Dependence, circular_blocks


def autoregressive(kept: float, length: int, seed: int = 1) -> Floats:
    rng = np.random.default_rng(seed)
    out = [0.0]
    for shock in rng.normal(size=length).tolist():
        out.append(kept * out[-1] + shock)
    return np.array(out)


def test_independent_values_ask_for_short_blocks_and_miss_nothing() -> None:
    told = [Dependence.of(np.random.default_rng(seed).normal(size=400)) for seed in range(20)]

    assert np.mean([one.block for one in told]) < 4
    assert np.mean([one.missed(8) for one in told]) == pytest.approx(1.0, abs=0.1)


def test_a_longer_memory_asks_for_longer_blocks() -> None:
    lengths = [Dependence.of(autoregressive(kept, 2000)).block for kept in (0.0, 0.5, 0.9)]

    assert lengths == sorted(lengths)
    assert lengths[-1] > 3 * lengths[0]


def test_the_variance_of_the_mean_is_that_of_theory() -> None:
    """Of an autoregressive series it is 1 / (1 - kept)^2 over its length."""
    told = np.mean([Dependence.of(autoregressive(0.6, 4000, seed)).total for seed in range(8)])

    assert told == pytest.approx(1 / 0.4**2, rel=0.15)


def test_short_blocks_miss_what_lasts_longer_than_they_do() -> None:
    series = Dependence.of(autoregressive(0.9, 4000))

    missed = [series.missed(block) for block in (1, 10, 100)]
    assert missed == sorted(missed, reverse=True)
    assert 1 < missed[1] <= MOST_MISSED


@pytest.mark.parametrize("series", [np.zeros(1), np.ones(50), np.array([1.0, 2.0, 1.0])])
def test_what_never_changes_or_is_too_short_asks_for_nothing(series: Floats) -> None:
    told = Dependence.of(series)

    assert (told.block, told.missed(3)) == (1.0, 1.0)


def test_blocks_draw_every_cell_equally_often_the_first_and_last_included() -> None:
    cells = Cells(count=20, width_s=1.0, block=5)

    weights = circular_blocks(np.random.default_rng(1), cells, 4000)

    assert weights.shape == (4000, 20)
    assert (weights.sum(axis=1) == 20).all()
    assert weights.mean(axis=0) == pytest.approx(np.ones(20), abs=0.08)


def test_the_cells_of_a_block_are_drawn_together() -> None:
    weights = circular_blocks(np.random.default_rng(1), Cells(count=30, width_s=1.0, block=10), 4000)

    near = np.corrcoef(weights[:, 3], weights[:, 4])[0, 1]
    far = np.corrcoef(weights[:, 3], weights[:, 18])[0, 1]
    assert near > 0.8
    assert far < 0


def test_one_burst_is_one_block_however_many_requests_it_has() -> None:
    cells = Cells(count=40, width_s=1.0, block=4)
    burst, even = np.zeros(40), np.ones(40)
    burst[2] = 30

    assert cells.spread(burst) == 1.0
    assert cells.spread(even) == 10.0
    assert cells.spread(np.zeros(40)) == 0.0
