import math

import pytest

from loadtests.units import figure


@pytest.mark.parametrize(
    ("value", "unit", "told"),
    [
        (182.4, "ms", "182 ms"),
        (12_345.6, "ms", "12.3 s"),
        (19.84, "s", "19.8 s"),
        (0.00912, "s", "9.12 ms"),
        (0.0, "s", "0 s"),
        (121.0, "s", "121 s"),
        (900.0, "s", "15 min"),
        (10_800.0, "s", "3 h"),
        (0.0123, "share", "1.23 %"),
        (0.0, "share", "0 %"),
        (3.0, "replicas", "3"),
        (208.9, "per_s", "209/s"),
        (570.2, "gpu_s", "570 GPU-s"),
        (0.396, "usd", "$0.40"),
        (-0.0012, "usd", "-$0.0012"),
        (math.inf, "ms", "never"),
        (None, "ms", "-"),
        (math.nan, "ms", "-"),
    ],
)
def test_figures_have_their_unit(value: float | None, unit: str, told: str) -> None:
    assert figure(value, unit) == told
