from __future__ import annotations

import pytest

from benchmarks.serving_overhead.stats import Spread, paired_ratios, percentile


@pytest.mark.parametrize(("percent", "expected"), [(0, 1.0), (50, 2.5), (95, 3.85), (100, 4.0)])
def test_percentiles_interpolate_between_ranks(percent: float, expected: float) -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], percent) == pytest.approx(expected)


def test_one_value_is_every_percentile() -> None:
    assert percentile([7.0], 95) == 7.0


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_a_spread_is_of_unsorted_values() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(median=2.0, low=1.0, high=3.0)


def test_ratios_are_taken_round_by_round_so_that_drift_cancels() -> None:
    # The machine became three times slower in round 2, for both alike.
    assert paired_ratios([80.0, 27.0], [100.0, 30.0]) == pytest.approx([0.8, 0.9])


def test_rounds_must_pair_up() -> None:
    with pytest.raises(ValueError, match="longer"):
        paired_ratios([1.0], [1.0, 2.0])
