from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.policy.reported_latency import Latency, latency
from serve_app.settings.knobs import ITL_PERCENTILES, PERCENTILES
from serve_app.wire.signals import EngineSignals


def test_percentiles_are_weighted_by_how_much_each_replica_observed() -> None:
    one = EngineSignals(itl_count=300, itl_p50_s=0.010, itl_p95_s=0.020)
    other = EngineSignals(itl_count=100, itl_p50_s=0.030, itl_p95_s=0.060)

    both = latency([one, other, EngineSignals()], "itl")

    assert both.count == 400
    assert (both.at(50), both.at(95)) == (pytest.approx(0.015), pytest.approx(0.030))


def test_nobody_having_observed_anything_is_no_latency() -> None:
    assert latency([], "itl").count == 0
    assert latency([EngineSignals()], "ttft_queue").share_above(0.0) == 0.0


@pytest.mark.parametrize(
    ("limit_s", "share"),
    [(0.5, 0.75), (1.0, 0.5), (1.5, 0.3), (2.0, 0.1), (3.0, 0.05), (4.0, 0.03), (5.0, 0.0), (9.0, 0.0)],
)
def test_the_share_above_a_limit_is_read_off_between_the_percentiles(limit_s: float, share: float) -> None:
    seen = Latency(PERCENTILES, ((100.0, 1.0, 2.0, 3.0, 5.0),), 100.0)

    assert seen.share_above(limit_s) == pytest.approx(share)


def test_the_share_of_a_limit_below_everything_is_all() -> None:
    same = Latency(PERCENTILES, ((100.0, 1.0, 1.0, 1.0, 1.0),), 100.0)

    assert same.share_above(0.0) == 1.0
    assert same.share_above(1.0) == 0.0


def test_the_share_is_that_of_each_replica_and_not_of_their_mean_percentiles() -> None:
    # One replica decodes in 10 ms, one in 30: half of 400 are above 20 ms. Their mean percentiles are 20 ms.
    fast = EngineSignals(itl_count=200, **{f"itl_p{p}_s": 0.010 for p in ITL_PERCENTILES})
    slow = EngineSignals(itl_count=200, **{f"itl_p{p}_s": 0.030 for p in ITL_PERCENTILES})

    # Of the slow one's a third of the lower half is taken to lie below: (1 - 0.5 * 20 / 30) / 2
    assert latency([fast, slow], "itl").share_above(0.020) == pytest.approx(1 / 3)
    assert latency([fast, slow], "itl").at(50) == pytest.approx(0.020)


def test_inter_token_latencies_are_read_off_between_more_percentiles() -> None:
    # 3 % also prefill: between the 97th percentile and the 98th the latency jumps from 13 to 60 ms.
    values = {f"itl_p{p}_s": 0.013 if p <= 97 else 0.060 for p in ITL_PERCENTILES}

    share = latency([EngineSignals(itl_count=1000, **values)], "itl").share_above(0.025)

    assert share == pytest.approx(0.03 - 0.01 * 12 / 47)


@given(st.lists(st.lists(st.floats(0, 1e15), min_size=5, max_size=5), max_size=4), st.floats(0, 1e15))
def test_percentiles_out_of_order_come_to_a_share_all_the_same(rows: list[list[float]], limit: float) -> None:
    rows = [[count + 1.0, *rest] for count, *rest in rows]
    seen = Latency(PERCENTILES, tuple(tuple(row) for row in rows), sum(row[0] for row in rows))

    assert 0.0 <= seen.share_above(limit) <= 1.0
