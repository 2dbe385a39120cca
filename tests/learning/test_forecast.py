import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.learning.forecast import DemandHistogram

BUCKETS = 12


def noted(*requests: tuple[float, float], fade: float = 1.0, rise: float = 0.0) -> DemandHistogram:
    """A memory of (demand, requests) one after the other, all after the same rise."""
    histogram = DemandHistogram()
    for level, weight in requests:
        histogram = histogram.note(level - rise, level, weight, BUCKETS * weight, fade, BUCKETS)
    return histogram


def test_quantile_counts_requests_and_not_time() -> None:
    # A hundred buckets of one request at 0.2 a second, one of a hundred at 20: half of the requests each.
    histogram = noted(*[(0.2, 1.0)] * 100, (20.0, 100.0))

    assert histogram.level(0.49) == pytest.approx(0.2, rel=0.03)
    assert histogram.level(0.51) == pytest.approx(20.0, rel=0.03)


@pytest.mark.parametrize(("q", "level"), [(0.0, 1.0), (0.25, 1.0), (0.26, 2.0), (0.75, 2.0), (1.0, 8.0)])
def test_quantile_is_the_demand_that_so_many_did_not_exceed(q: float, level: float) -> None:
    # One request at 1, two at 2, one at 8.
    assert noted((1.0, 1), (2.0, 2), (8.0, 1)).level(q) == pytest.approx(level, rel=0.03)


def test_demand_that_fell_is_no_rise() -> None:
    assert noted((3.0, 5), rise=-2.0).all_rises.quantile(1.0) == 0.0
    assert noted((3.0, 5), rise=2.0).all_rises.quantile(0.5) == pytest.approx(2.0, rel=0.03)


def test_rises_are_those_from_a_similar_demand() -> None:
    histogram = DemandHistogram()
    for before, level in ((1.0, 1.0), (1.0, 21.0), (20.0, 20.0), (20.0, 21.0)):
        histogram = histogram.note(before, level, 5.0, 60.0, 1.0, BUCKETS)

    assert histogram.rises_from(1.4).quantile(1.0) == pytest.approx(20.0, rel=0.03)
    assert histogram.rises_from(14.0).quantile(1.0) == pytest.approx(1.0, rel=0.03)
    assert (
        histogram.rises_from(1.4).windows == histogram.rises_from(14.0).windows == pytest.approx(2 / BUCKETS)
    )
    assert histogram.rises_from(5.0).windows == 0.0  # it has never been there


def test_a_level_fades_unless_it_comes_back() -> None:
    histogram = DemandHistogram().note(50.0, 60.0, 5.0, 60.0, 1.0, BUCKETS)
    for _ in range(20):
        histogram = histogram.note(1.0, 1.0, 5.0, 60.0, 0.5, BUCKETS)

    assert histogram.rises_from(50.0).windows == 0.0
    assert len(histogram.rises) == 1


def test_a_quiet_hour_is_remembered_after_a_busy_one() -> None:
    busy = noted(*[(500.0, 2500.0)] * 720)
    quiet = busy
    for _ in range(720):
        quiet = quiet.note(0.2, 0.2, 1.0, 12.0, 0.999, BUCKETS)

    assert quiet.rises_from(0.2).windows > 35.0


def test_a_level_without_a_known_demand_before_is_no_rise() -> None:
    histogram = DemandHistogram().note(None, 7.0, 5.0, 60.0, 1.0, BUCKETS)

    assert histogram.level(0.5) == pytest.approx(7.0, rel=0.03)
    assert histogram.rises == {}


def test_older_requests_fade_with_each_newer_bucket() -> None:
    # 16 requests at 1, then four buckets of one at 10 that each halve: 16 / 2^4 = 1 against 1.875.
    histogram = noted((1.0, 16), *[(10.0, 1)] * 4, fade=0.5)

    assert histogram.level(0.34) == pytest.approx(1.0, rel=0.03)  # 1 / 2.875 = 0.348
    assert histogram.level(0.36) == pytest.approx(10.0, rel=0.03)

    # What has faded away is dropped: 2^-20 is less than a thousandth of a request.
    assert len(noted((1.0, 1), *[(10.0, 1)] * 20, fade=0.5).levels) == 1


def test_effective_windows_are_those_of_kish() -> None:
    # 36 buckets are three minutes of twelve, each with 12 * 5 requests around it.
    assert noted(*[(1.0, 5.0)] * 36).all_rises.windows == pytest.approx(3.0)
    # Kish: (60 + 60 + 6000)^2 / (60^2 + 60^2 + 6000^2) = 1.04
    histogram = noted(*[(1.0, 5.0)] * 24, *[(100.0, 500.0)] * 12)

    assert histogram.all_rises.windows == pytest.approx(1.04, rel=0.01)


levels = st.lists(st.tuples(st.floats(0, 1e15), st.floats(1e-3, 1e15)), min_size=1, max_size=40)


@given(levels, st.floats(0.9, 1.0), st.floats(0, 1), st.floats(0, 1))
def test_a_higher_quantile_is_never_a_lower_demand(
    requests: list[tuple[float, float]], fade: float, one: float, other: float
) -> None:
    histogram = noted(*requests, fade=fade)
    low, high = sorted((one, other))

    assert histogram.level(low) <= histogram.level(high) <= 1.03 * max(level for level, _ in requests)


@given(levels, st.floats(0.9, 1.0))
def test_there_are_never_more_windows_than_were_seen(
    requests: list[tuple[float, float]], fade: float
) -> None:
    minutes = noted(*requests, fade=fade).all_rises.windows

    assert 0 < minutes <= len(requests) / BUCKETS * (1 + 1e-9)


@given(levels, st.floats(1, 100))
def test_scaled_demand_scales_every_quantile(requests: list[tuple[float, float]], factor: float) -> None:
    once = noted(*requests)
    more = noted(*[(factor * level, factor * weight) for level, weight in requests])

    for q in (0.1, 0.5, 0.93):
        assert more.level(q) >= 0.9 * factor * once.level(q) or more.level(
            q + 1e-6
        ) >= 0.9 * factor * once.level(q)
    assert more.all_rises.windows == pytest.approx(once.all_rises.windows, rel=1e-6)
