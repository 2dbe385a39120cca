import math

import numpy as np
import pytest

from loadtests.columns import NEVER, percentile
from loadtests.comparing.resampling import Draws, freedom_of, interval, percentiles_of, student_95


@pytest.mark.parametrize("size", [30, 900, 20_000])
def test_a_draw_of_everything_once_has_the_percentiles_of_the_run(size: int) -> None:
    rng = np.random.default_rng(4)
    values, where = rng.lognormal(size=size), rng.integers(0, 10, size)
    once = Draws(np.ones((1, 10)), np.ones((1, 1)))

    drawn = percentiles_of(once, [values], [where], (0.5, 0.95, 0.99))

    ordered = np.sort(values)
    for share, told in zip((0.5, 0.95, 0.99), drawn, strict=True):
        assert told[0] == pytest.approx(percentile(ordered, share), rel=0.01)


def test_a_draw_has_the_percentiles_of_what_it_draws() -> None:
    values = np.array([1.0, 2.0, 3.0, 10.0, NEVER])
    where = np.array([0, 0, 1, 1, 2])
    draws = Draws(np.array([[1.0, 0, 0], [0, 2, 0], [0, 0, 1], [0, 0, 0], [1, 1, 1]]), np.ones((5, 1)))

    (middle,) = percentiles_of(draws, [values], [where], (0.5,))

    assert middle[:3].tolist() == [1.5, 6.5, NEVER]
    assert math.isnan(middle[3])
    assert middle[4] == 3.0


def test_infinity_stays_apart_among_many_values() -> None:
    rng = np.random.default_rng(4)
    values = np.where(rng.random(5000) < 0.02, NEVER, rng.random(5000))
    once = Draws(np.ones((1, 1)), np.ones((1, 1)))

    low, high = percentiles_of(once, [values], [np.zeros(5000, dtype=np.int64)], (0.95, 0.99))

    assert low[0] < 1
    assert high[0] == NEVER


def test_of_several_runs_all_but_one_are_drawn() -> None:
    weights = np.ones((2000, 5))

    draws = Draws.of(np.random.default_rng(3), weights, 4)

    assert (draws.runs.sum(axis=1) == 3).all()
    assert draws.runs.mean(axis=0) == pytest.approx(np.full(4, 0.75), abs=0.05)
    assert (Draws.of(np.random.default_rng(3), weights, 1).runs == 1).all()


def test_the_spread_of_drawn_means_is_that_of_the_mean_of_runs() -> None:
    figures = np.array([1.0, 2.0, 4.0])
    draws = Draws.of(np.random.default_rng(3), np.ones((20_000, 1)), 3)

    drawn = draws.runs @ figures / 2

    assert np.var(drawn) == pytest.approx(np.var(figures, ddof=1) / 3, rel=0.05)


def test_an_interval_is_made_wider_around_what_was_observed() -> None:
    drawn = np.linspace(-1, 1, 1001) + 3

    assert interval(3.0, drawn, 1.0) == pytest.approx((2.05, 3.95), abs=0.01)
    assert interval(3.0, drawn, 2.0) == pytest.approx((1.1, 4.9), abs=0.01)


def test_an_interval_of_what_never_came_is_infinite_and_not_nan() -> None:
    assert interval(NEVER, np.full(100, NEVER), 2.0) == (NEVER, NEVER)
    assert interval(1.0, np.array([0.5] * 50 + [NEVER] * 50), 2.0) == (0.0, NEVER)


@pytest.mark.parametrize(("freedom", "within"), [(2, 4.303), (4, 2.776), (9, 2.262), (30, 2.042)])
def test_students_law_is_that_of_the_tables(freedom: int, within: float) -> None:
    assert student_95(freedom) == pytest.approx(within, rel=0.01)


def test_runs_that_differ_leave_few_degrees_of_freedom_and_equal_ones_those_of_the_blocks() -> None:
    drawn = np.random.default_rng(1).normal(0, 1, 1000)

    assert freedom_of([[1.0], [1.0]], drawn, 21) == 20
    assert freedom_of([[1.0, 1.0], [1.0, 1.0]], drawn, 21) == pytest.approx(20)
    assert freedom_of([[0.0, 9.0], [0.0, 9.0]], drawn, 21) == pytest.approx(2)
    assert freedom_of([[0.0, NEVER], [0.0, 9.0]], drawn, 21) == 2
