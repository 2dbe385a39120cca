from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.policy.demand import BUCKET_S, LONGEST_HORIZON_S, MAX_BUCKETS, Demand, Rate, felt
from tests.policy.build import NOW


def steady(seconds: int, requests: float, tokens: float = 0.0, history: Demand | None = None) -> Demand:
    """So many requests every second."""
    demand = history or Demand().add(NOW, 0, 0)
    start = demand.until
    for second in range(1, seconds + 1):
        demand = demand.add(start + second, requests, tokens)
    return demand


def test_a_steady_stream_has_the_rate_it_has() -> None:
    demand = steady(120, 3.0, 1500.0)

    short, long = demand.recent(demand.until)

    assert (short.requests, long.requests) == (pytest.approx(3.0), pytest.approx(3.0))
    assert (short.tokens, short.mean_tokens) == (pytest.approx(1500.0), pytest.approx(500.0))


def test_the_short_rate_follows_a_rise_and_the_long_one_outlasts_a_lull() -> None:
    rise = steady(30, 6.0, history=steady(120, 2.0))
    lull = steady(30, 0.0, history=steady(120, 2.0))

    assert [round(r.requests, 1) for r in rise.recent(rise.until)] == [6.0, 4.0]
    assert [round(r.requests, 1) for r in lull.recent(lull.until)] == [0.0, 1.0]
    assert rise.recent_rps(rise.until) == pytest.approx(6.0)
    assert lull.recent_rps(lull.until) == pytest.approx(1.0)


def test_one_request_at_the_start_is_no_burst() -> None:
    demand = Demand().add(NOW, 0, 0).add(NOW + 0.5, 1, 100)

    assert demand.rate(NOW + 0.5, 6) == Rate(1 / BUCKET_S, 100 / BUCKET_S)


def test_nothing_seen_is_no_rate() -> None:
    assert Demand().recent(NOW) == (Rate(), Rate())
    assert Demand().felt_rps(NOW) == 0.0
    assert Rate().mean_tokens == 0.0


def test_what_came_in_a_long_gap_is_spread_over_it() -> None:
    demand = Demand().add(NOW, 0, 0).add(NOW + 20, 40, 400)

    assert [round(requests, 6) for requests, _ in demand.buckets] == [10, 10, 10, 10, 0]


def test_a_clock_set_back_begins_anew() -> None:
    before = steady(90, 5.0)

    assert before.add(NOW - 3600, 7, 70) == Demand(((7, 70),), NOW - 3600, NOW - 3600, before.peaks)


# As requests felt it.


def test_a_burst_is_felt_as_those_in_it_felt_it_and_not_as_the_mean() -> None:
    # One bucket of 20 and eleven of 4: each of the 20 met 19 others within 5 s, each of the 44 three.
    # (20 * 19 + 11 * 4 * 3) / 64 = 8 a bucket, 1.6 a second; the mean is 64 / 60 = 1.07.
    assert felt([20.0] + [4.0] * 11) == pytest.approx(1.6)


def test_single_requests_feel_nobody() -> None:
    assert felt([1.0, 0.0, 1.0, 0.2]) == 0.0
    assert felt([]) == 0.0


def test_what_is_felt_is_never_less_than_the_mean() -> None:
    demand = steady(120, 0.2)  # one in each bucket

    assert demand.felt_rps(demand.until) == pytest.approx(0.2)


def test_poisson_arrivals_feel_their_mean_rate() -> None:
    # A bucket's count is Poisson: sums of 1 over the seconds in which one of 100 slots had an arrival.
    draw = random.Random(5)
    counts = [float(sum(draw.random() < 0.1 for _ in range(200))) for _ in range(4000)]

    assert felt(counts) == pytest.approx(20 / BUCKET_S, rel=0.06)


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=13), st.floats(1, 10))
def test_more_of_the_same_is_felt_as_at_least_as_much_more(counts: list[float], factor: float) -> None:
    more = [factor * count for count in counts]

    assert felt(more) >= factor * felt(counts) * (1 - 1e-9)


# The memory of it.


def bursts(history: Demand, minutes: int, gap_s: int, rps: float) -> Demand:
    """A minute at so many a second, `gap_s` of silence, and again."""
    for _ in range(minutes):
        history = steady(gap_s, 0.0, history=steady(60, rps, history=history))
    return history


def test_a_steady_stream_is_remembered_as_it_is() -> None:
    demand = steady(600, 4.0)

    # 20 in every bucket; each met 19 others: 3.8 a second, so the mean counts. To 5 %.
    assert demand.peaks.level(0.9) == pytest.approx(4.0, rel=0.03)
    assert demand.peaks.rise(0.9) == 0.0
    # 600 s less half a minute at each end that has no whole minute around it yet.
    assert demand.peaks.minutes == pytest.approx(9.0, rel=0.05)


def test_silence_fades_nothing() -> None:
    busy = steady(600, 4.0)

    later = steady(7200, 0.0, history=busy).peaks

    assert later.level(0.9) == busy.peaks.level(0.9)
    assert later.minutes == pytest.approx(busy.peaks.minutes, rel=0.15)


def test_traffic_fades_what_came_before_it() -> None:
    demand = Demand().add(NOW, 0, 0)
    for second in range(1, 1201):
        demand = demand.add(NOW + second, 10.0 if second <= 300 else 1.0, 0.0, 60.0, memory_s=120.0)

    # 900 s at 1 a second are 7.5 times the memory: e^-7.5 * 10 = 0.6 % of what is remembered.
    assert demand.peaks.level(0.9) == pytest.approx(1.0, rel=0.06)
    assert demand.peaks.level(1.0) > 5.0


def test_a_rise_is_against_the_demand_of_a_cold_start_before() -> None:
    sudden = bursts(Demand().add(NOW, 0, 0), 4, 240, rps=8.0)

    # Of all within the bursts, more than half had risen by most of 8 a second within the minute before.
    assert sudden.peaks.rise(0.9) == pytest.approx(8.0, rel=0.15)
    # A slow ramp, 0.01 a second more each second: within 60 s and the minute that is looked at, 1.2.
    demand = Demand().add(NOW, 0, 0)
    for second in range(1, 901):
        demand = demand.add(NOW + second, 0.01 * second, 0.0, 60.0)
    assert 0.5 < demand.peaks.rise(0.9) <= 1.3


def test_however_short_a_cold_start_a_rise_is_that_of_a_minute() -> None:
    """All requests of a minute suffer when it begins with too few replicas."""

    def ramp(horizon_s: float) -> float:
        demand = Demand().add(NOW, 0, 0)
        for second in range(1, 901):
            demand = demand.add(NOW + second, 0.01 * second, 0.0, horizon_s)
        return demand.peaks.rise(0.5)

    assert ramp(5.0) == ramp(60.0)
    # Over a cold start and half a minute: 0.9 and 2.1.
    assert (ramp(60.0), ramp(180.0)) == (pytest.approx(0.9, rel=0.06), pytest.approx(2.1, rel=0.06))


def test_a_rise_is_not_read_from_before_observation_began() -> None:
    # A stream that is already there when observation begins has not risen to where it is.
    assert steady(100, 8.0).peaks.rise(1.0) == 0.0
    # Nor has it later, against a minute of which only a part was observed.
    assert steady(300, 8.0).peaks.rise(1.0) == 0.0


def test_a_long_cold_start_is_looked_back_over_no_further_than_its_bound() -> None:
    demand = Demand().add(NOW, 0, 0)
    for second in range(1, 1801):
        demand = demand.add(NOW + second, 2.0, 0.0, horizon_s=1e9)

    assert demand.peaks.rise(0.9) == 0.0
    assert len(demand.buckets) == MAX_BUCKETS >= LONGEST_HORIZON_S / BUCKET_S + 24


def test_buckets_are_kept_for_the_longest_cold_start_and_no_more() -> None:
    demand = Demand().add(NOW, 0, 0).add(NOW + 10_000, 10_000, 0)

    assert len(demand.buckets) == MAX_BUCKETS
    assert demand.rate(NOW + 10_000, MAX_BUCKETS).requests == pytest.approx(1.0, rel=0.01)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 50)), max_size=25))
def test_no_arrival_is_lost_or_counted_twice(arrivals: list[tuple[float, int]]) -> None:
    demand, now = Demand().add(NOW, 0, 0), NOW
    for gap, requests in arrivals:
        now += gap
        demand = demand.add(now, requests, 2.0 * requests)

    total = sum(requests for _, requests in arrivals)
    if now - NOW < MAX_BUCKETS * BUCKET_S - 2 * BUCKET_S:
        assert sum(bucket[0] for bucket in demand.buckets) == pytest.approx(total)
        assert sum(bucket[1] for bucket in demand.buckets) == pytest.approx(2 * total)
    assert min(bucket[0] for bucket in demand.buckets) >= -1e-6
