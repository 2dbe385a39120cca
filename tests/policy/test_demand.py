import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.policy.demand import (
    BUCKET_S,
    LONGEST_HORIZON_S,
    MAX_BUCKETS,
    Demand,
    DemandHistogram,
    window_buckets,
)
from tests.policy.build import NOW


def steady(seconds: int, requests: float, history: Demand | None = None) -> Demand:
    """So many requests every second."""
    demand = history or Demand().add(NOW, 0)
    start = demand.until
    for second in range(1, seconds + 1):
        demand = demand.add(start + second, requests)
    return demand


def test_short_rate_follows_rise_long_rate_outlasts_lull() -> None:
    same, rise = steady(120, 3.0), steady(30, 6.0, history=steady(120, 2.0))
    lull = steady(30, 0.0, history=steady(120, 2.0))

    assert same.recent(same.until) == (pytest.approx(3.0), pytest.approx(3.0))
    assert rise.recent(rise.until) == (pytest.approx(6.0), pytest.approx(4.0))
    assert lull.recent(lull.until) == (pytest.approx(0.0), pytest.approx(1.0))


def test_one_request_at_the_start_is_no_burst() -> None:
    assert Demand().add(NOW, 0).add(NOW + 0.5, 1).rate(NOW + 0.5, 6) == 1 / BUCKET_S


def test_what_came_in_a_long_gap_is_spread_over_it() -> None:
    demand = Demand().add(NOW, 0).add(NOW + 20, 40)

    assert demand.buckets == pytest.approx((10, 10, 10, 10, 0))


def test_a_clock_set_back_begins_anew() -> None:
    before = steady(90, 5.0)

    assert before.add(NOW - 3600, 7) == Demand((7,), NOW - 3600, NOW - 3600, before.histogram)


# The rate weighted by requests.


def weighted(counts: list[float]) -> float:
    """The weighted rate of a minute with so many requests in each bucket."""
    demand = Demand(tuple(counts), NOW, NOW, window=len(counts))
    return demand.weighted_rps(NOW + BUCKET_S)


def test_weighted_rate_is_the_mean_over_requests() -> None:
    # One bucket of 20 and eleven of 4: each of the 20 met 19 others within 5 s, each of the 44 three.
    # (20 * 19 + 11 * 4 * 3) / 64 = 8 a bucket, 1.6 a second; the mean is 64 / 60 = 1.07.
    assert weighted([20.0] + [4.0] * 11) == pytest.approx(1.6)


def test_weighted_rate_is_never_less_than_the_mean() -> None:
    demand = steady(120, 0.2)  # one in each bucket: no request meets another

    assert demand.weighted_rps(demand.until) == pytest.approx(0.2)
    assert Demand().weighted_rps(NOW) == 0.0


def test_weighted_rate_of_poisson_arrivals_is_their_mean_rate() -> None:
    # A bucket's count is Poisson: sums of 1 over the seconds in which one of 100 slots had an arrival.
    draw = random.Random(5)
    counts = [float(sum(draw.random() < 0.1 for _ in range(200))) for _ in range(4000)]

    assert weighted(counts) == pytest.approx(20 / BUCKET_S, rel=0.06)


# The histogram of demand.


def bursts(history: Demand, minutes: int, gap_s: int, rps: float) -> Demand:
    """A minute at so many a second, `gap_s` of silence, and again."""
    for _ in range(minutes):
        history = steady(gap_s, 0.0, history=steady(60, rps, history=history))
    return history


def test_a_steady_stream_is_remembered_as_it_is() -> None:
    demand = steady(600, 4.0)

    # 20 in every bucket; each met 19 others: 3.8 a second, so the mean counts. To 5 %.
    assert demand.histogram.level(0.9) == pytest.approx(4.0, rel=0.03)
    assert demand.histogram.all_rises.quantile(0.9) == 0.0
    # 600 s less two and a half minutes: those in which a rise over a minute is not yet seen whole.
    assert demand.histogram.all_rises.windows == pytest.approx(7.5, rel=0.05)


def test_silence_fades_nothing() -> None:
    busy = steady(600, 4.0)

    later = steady(7200, 0.0, history=busy).histogram

    assert later.level(0.9) == busy.histogram.level(0.9)
    assert later.all_rises.windows == pytest.approx(busy.histogram.all_rises.windows, rel=0.15)


def test_traffic_fades_what_came_before_it() -> None:
    demand = Demand().add(NOW, 0)
    for second in range(1, 1201):
        demand = demand.add(NOW + second, 10.0 if second <= 300 else 1.0, memory_s=120.0)

    # 900 s at 1 a second are 7.5 times the memory: e^-7.5 * 10 = 0.6 % of what is remembered.
    assert demand.histogram.level(0.9) == pytest.approx(1.0, rel=0.06)
    assert demand.histogram.level(1.0) > 5.0


def test_rise_is_measured_over_one_cold_start() -> None:
    sudden = bursts(Demand().add(NOW, 0), 4, 240, rps=8.0)

    # Of all within the bursts, more than half had risen by most of 8 a second within the minute before.
    assert sudden.histogram.all_rises.quantile(0.9) == pytest.approx(8.0, rel=0.15)
    # A slow ramp, 0.01 a second more each second: within 60 s and the minute that is looked at, 1.2.
    assert 0.5 < ramp(60.0, 0.9) <= 1.3


def ramp(horizon_s: float, q: float = 0.5) -> float:
    demand = Demand().add(NOW, 0)
    for second in range(1, 901):
        demand = demand.add(NOW + second, 0.01 * second, horizon_s)
    return demand.histogram.all_rises.quantile(q)


@pytest.mark.parametrize(
    ("start_s", "buckets"), [(0.1, 2), (3.0, 2), (10.0, 2), (10.1, 3), (20.0, 4), (60.0, 12), (900.0, 12)]
)
def test_a_rate_is_read_over_one_start(start_s: float, buckets: int) -> None:
    assert window_buckets(start_s) == buckets
    demand = Demand().add(NOW, 0, start_s)
    for second in range(1, 91):  # 20 a second in the last ten seconds
        demand = demand.add(NOW + second, 20.0 if second > 80 else 2.0, start_s)
    seconds = buckets * BUCKET_S
    assert demand.recent(NOW + 90)[1] == pytest.approx(2.0 + 18.0 * 10.0 / seconds, rel=0.1)


def test_a_rise_is_read_over_at_least_ten_seconds() -> None:
    # Over a start and half a window: 0.15, 0.9 and 2.1.
    assert ramp(3.0) == ramp(10.0) == pytest.approx(0.15, rel=0.06)
    assert (ramp(60.0), ramp(180.0)) == (pytest.approx(0.9, rel=0.06), pytest.approx(2.1, rel=0.06))


def test_a_rise_is_not_read_from_before_observation_began() -> None:
    # A stream that is already there when observation begins has not risen to where it is.
    assert steady(100, 8.0).histogram.rises == {}
    # Nor has it later, against a minute of which only a part was observed.
    assert steady(300, 8.0).histogram.all_rises.quantile(1.0) == 0.0


def test_buckets_of_a_long_start_are_bounded() -> None:
    demand = Demand().add(NOW, 0)
    for second in range(1, 1801):
        demand = demand.add(NOW + second, 2.0, horizon_s=1e9)

    assert demand.histogram.all_rises.quantile(0.9) == 0.0
    assert len(demand.buckets) == MAX_BUCKETS >= LONGEST_HORIZON_S / BUCKET_S + 24


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 50)), max_size=25))
def test_no_arrival_is_lost_or_counted_twice(arrivals: list[tuple[float, int]]) -> None:
    demand, now = Demand().add(NOW, 0), NOW
    for gap, requests in arrivals:
        now += gap
        demand = demand.add(now, requests)

    total = sum(requests for _, requests in arrivals)
    if now - NOW < MAX_BUCKETS * BUCKET_S - 2 * BUCKET_S:
        assert sum(demand.buckets) == pytest.approx(total)
    assert min(demand.buckets) >= -1e-6


BUCKETS = 12


def noted(*requests: tuple[float, float], fade: float = 1.0, rise: float = 0.0) -> DemandHistogram:
    """A memory of (demand, requests) one after the other, all after the same rise."""
    histogram = DemandHistogram()
    for level, weight in requests:
        histogram = histogram.note(level - rise, level, weight, BUCKETS * weight, fade, BUCKETS)
    return histogram


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
