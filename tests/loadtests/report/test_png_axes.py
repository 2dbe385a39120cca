import math

import numpy as np
import pytest

from loadtests.report.png_axes import limits


def test_an_axis_has_room_for_its_values_and_the_bounds_near_them() -> None:
    values = np.array([0.012, 0.05, math.nan, math.inf])

    assert limits(values) == pytest.approx((0.01, 0.1))
    assert limits(values, [0.14]) == pytest.approx((0.01, 0.2))
    assert limits(values, [0.005]) == pytest.approx((0.002, 0.1))


def test_a_bound_far_off_does_not_stretch_an_axis() -> None:
    values = np.array([0.012, 0.05])

    assert limits(values, [120.0, 0.0001]) == limits(values)


def test_where_nothing_came_the_bounds_are_all_there_is() -> None:
    assert limits(np.array([math.inf]), [0.1, 2.0]) == pytest.approx((0.05, 5.0))
    assert limits(np.array([])) == (0.01, 1.0)
