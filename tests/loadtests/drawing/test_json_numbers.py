import math

import numpy as np

from loadtests.drawing.json_numbers import finite, fixed, series, short


def test_infinite_numbers_become_null() -> None:
    assert short(math.inf) is None
    assert fixed(math.nan, 2) is fixed(None, 2) is None
    assert series(np.array([1.0, math.nan])) == [1, None]
    assert finite({"a": [np.float64("nan"), (1.5, np.int64(2))]}) == {"a": [None, [1.5, 2]]}


def test_digits_are_kept_as_far_as_asked_and_whole_numbers_are_whole() -> None:
    assert (short(1 / 3, 3), short(12345678.0), fixed(2 / 3, 2)) == (0.333, 12345678, 0.67)
