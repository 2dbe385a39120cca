import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.telemetry.latency_window import LatencyWindow

NOW = 1000.0


def window_of(*values: float) -> LatencyWindow:
    window = LatencyWindow(30.0)
    window.observe(values, NOW)
    return window


def nearest_rank(values: list[float], q: float) -> float:
    return sorted(values)[max(0, math.ceil(q / 100 * len(values)) - 1)]


@settings(deadline=None)
@given(st.lists(st.floats(1e-4, 1e3), min_size=1, max_size=60), st.sampled_from([1, 10, 50, 90, 95, 99, 100]))
def test_a_percentile_is_off_by_five_percent_at_most(values: list[float], q: float) -> None:
    assert window_of(*values).percentile(q, NOW) == pytest.approx(nearest_rank(values, q), rel=0.0501)


@pytest.mark.parametrize(("value", "counted_as"), [(0.0, 1e-4), (-1.0, 1e-4), (1e-9, 1e-4), (5e3, 1e3)])
def test_what_lies_outside_counts_as_the_nearest_bound(value: float, counted_as: float) -> None:
    window = window_of(value)

    assert window.count(NOW) == 1
    assert window.percentile(50, NOW) == pytest.approx(counted_as, rel=0.06)


@pytest.mark.parametrize(
    ("later", "left"), [(0.0, 2), (5.0, 2), (24.9, 2), (30.0, 0), (35.0, 0), (36.0, 0), (90.0, 0), (1e6, 0)]
)
def test_nothing_leaves_early_and_nothing_is_left_after_a_window(later: float, left: int) -> None:
    window = window_of(0.1, 0.2)

    assert window.count(NOW + later) == left
    assert (window.percentile(95, NOW + later) > 0.0) is (left > 0)


def test_a_window_that_was_empty_for_long_begins_anew() -> None:
    window = window_of(5.0)
    window.observe([0.1], NOW + 1e6)

    assert window.count(NOW + 1e6) == 1
    assert window.percentile(50, NOW + 1e6) == pytest.approx(0.1, rel=0.05)


def test_a_clock_that_goes_back_loses_nothing() -> None:
    window = window_of(0.1)
    window.observe([0.1], NOW - 100.0)

    assert window.count(NOW) == 2
    assert window.count(NOW - 100.0) == 2
