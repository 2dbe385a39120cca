import math

import numpy as np
import pytest

from loadtests.columns import NEVER, Percentiles, percentile


def test_percentiles_are_numpys_where_all_is_finite() -> None:
    values = np.random.default_rng(3).lognormal(size=1003)

    measured = Percentiles.of(values)

    assert measured is not None
    assert (measured.count, measured.never) == (1003, 0)
    expected = np.percentile(values, [50, 90, 95, 99, 100])
    assert (measured.p50, measured.p90, measured.p95, measured.p99, measured.max) == pytest.approx(expected)
    assert measured.mean == pytest.approx(values.mean())


def test_nothing_has_no_percentiles() -> None:
    assert Percentiles.of(np.zeros(0)) is None


def test_infinite_latencies_make_no_percentile_nan() -> None:
    measured = Percentiles.of(np.array([NEVER, 0.1, 0.2, 0.3, NEVER]))

    assert measured is not None
    assert (measured.count, measured.never) == (5, 2)
    assert (measured.p50, measured.p90, measured.max, measured.mean) == (0.3, NEVER, NEVER, NEVER)
    assert percentile(np.array([0.1, 0.2, NEVER]), 0.5) == 0.2
    assert percentile(np.array([0.1, 0.2, NEVER]), 0.51) == NEVER
    assert percentile(np.array([NEVER, NEVER]), 0.5) == NEVER


@pytest.mark.parametrize("at", [0.0, 0.5, 0.99, 1.0])
def test_one_value_is_every_percentile(at: float) -> None:
    assert percentile(np.array([7.0]), at) == 7.0
    assert not math.isnan(percentile(np.array([NEVER]), at))
