from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.autoscaling.demand import BUCKET_S, MAX_BUCKETS, Demand, Rate
from tests.autoscaling.build import NOW


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


def test_one_request_at_the_beginning_is_no_torrent() -> None:
    demand = Demand().add(NOW, 0, 0).add(NOW + 0.5, 1, 100)

    assert demand.rate(NOW + 0.5, 6) == Rate(1 / BUCKET_S, 100 / BUCKET_S)


def test_nothing_seen_is_no_rate() -> None:
    assert Demand().recent(NOW) == (Rate(), Rate())
    assert Demand().quantile(0.9, 600.0, 0.5, 100.0) == Rate()
    assert Rate().mean_tokens == 0.0


def test_what_came_in_a_long_gap_is_spread_over_it() -> None:
    demand = Demand().add(NOW, 0, 0).add(NOW + 20, 40, 400)

    assert [round(requests, 6) for requests, _ in demand.buckets] == [10, 10, 10, 10, 0]


def test_a_clock_set_back_begins_anew() -> None:
    demand = steady(60, 5.0).add(NOW - 3600, 7, 70)

    assert demand == Demand(((7, 70),), NOW - 3600, NOW - 3600)


def test_the_quantile_is_of_ten_second_demand_and_idle_time_counts() -> None:
    # 90 s of nothing, 10 s at 8 a second: ten slots, one of them busy.
    demand = steady(10, 8.0, history=steady(90, 0.0))

    assert demand.quantile(0.9, 100.0, 0.0, 0.0).requests == pytest.approx(0.0)
    assert demand.quantile(1.0, 100.0, 0.0, 0.0).requests == pytest.approx(8.0)


def test_the_quantile_looks_back_no_further_than_its_window() -> None:
    demand = steady(60, 1.0, history=steady(60, 9.0))

    assert demand.quantile(1.0, 50.0, 0.0, 0.0).requests == pytest.approx(1.0)
    assert demand.quantile(1.0, 120.0, 0.0, 0.0).requests == pytest.approx(9.0, rel=0.2)


def test_prompts_longer_than_the_mean_weigh_as_much_more_as_they_cost() -> None:
    demand = steady(60, 2.0, tokens=2.0 * 3000)

    assert demand.quantile(0.5, 60.0, 0.0, 1000.0).requests == pytest.approx(2.0)
    assert demand.quantile(0.5, 60.0, 0.5, 1000.0).requests == pytest.approx(4.0)
    assert demand.quantile(0.5, 60.0, 1.0, 1000.0).requests == pytest.approx(6.0)


def test_an_hour_is_remembered_and_no_more() -> None:
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
    assert sum(bucket[0] for bucket in demand.buckets) == pytest.approx(total)
    assert sum(bucket[1] for bucket in demand.buckets) == pytest.approx(2 * total)
    assert min(bucket[0] for bucket in demand.buckets) >= -1e-6
