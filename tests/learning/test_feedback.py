from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.learning.demand import Demand
from serve_app.learning.feedback import (
    Latency,
    Measured,
    latency,
    learn_interference,
    measure,
    remember_ready,
)
from serve_app.learning.state import PolicyState
from serve_app.policy.capacity_model import Mix, StepTime, slow_share
from serve_app.settings.knobs import ITL_PERCENTILES, PERCENTILES, Knobs
from serve_app.wire.signals import EngineSignals
from tests.policy.build import NOW

KNOBS = Knobs(ttft_target_s=0.2, itl_target_s=0.025, ttft_percentile=95)
ITL_LIMIT_S = 0.025


def latencies(queue_s: float, prefill_s: float, itl_s: float, count: float = 100.0) -> EngineSignals:
    """Every request and token alike."""
    values = {}
    for part, seconds, percentiles in (
        ("ttft_queue", queue_s, PERCENTILES),
        ("ttft_prefill", prefill_s, PERCENTILES),
        ("itl", itl_s, ITL_PERCENTILES),
    ):
        values |= {f"{part}_p{p}_s": seconds for p in percentiles}
    return EngineSignals(ttft_count=count, itl_count=count, **values)


# What is measured.


def test_only_the_wait_that_prefill_leaves_room_for_counts_against_the_replicas() -> None:
    # 0.2 s less 0.05 s of prefill: a wait of 0.16 s is a miss and one of 0.14 s is none.
    assert measure([latencies(0.16, 0.05, 0.01)], KNOBS, ITL_LIMIT_S).ttft_missed > 0.5
    assert measure([latencies(0.14, 0.05, 0.01)], KNOBS, ITL_LIMIT_S).ttft_missed == 0.0


def test_beside_a_prefill_longer_than_the_target_a_wait_of_half_of_it_is_none() -> None:
    measured = measure([latencies(0.10, 0.21, 0.01)], KNOBS, ITL_LIMIT_S)

    assert not measured.ttft_feasible
    assert measured.ttft_missed == 0.0
    assert measure([latencies(0.11, 0.21, 0.01)], KNOBS, ITL_LIMIT_S).ttft_missed > 0.5


def test_a_few_long_prompts_do_not_call_off_the_target_of_the_others() -> None:
    mixed = replace(latencies(0.3, 0.05, 0.01), ttft_prefill_p95_s=0.9, ttft_prefill_p99_s=1.5)

    measured = measure([mixed], KNOBS, ITL_LIMIT_S)

    assert measured.ttft_feasible
    assert measured.ttft_missed > 0.4


def test_inter_token_latencies_are_held_against_the_limit_that_the_fleet_is_sized_for() -> None:
    slow = latencies(0.0, 0.05, 0.03)

    assert measure([slow], KNOBS, 0.025).itl_missed > 0.5
    assert measure([slow], KNOBS, 0.031).itl_missed == 0.0


def test_nothing_measured_is_nothing_missed() -> None:
    measured = measure([], KNOBS, ITL_LIMIT_S)

    assert (measured.ttft_missed, measured.itl_missed, measured.ttft_feasible) == (0.0, 0.0, True)


# What follows from it.


def settled(**rest: object) -> PolicyState:
    """A fleet looked at a second ago, under four requests a second."""
    demand = Demand().add(NOW - 100, 0)
    for second in range(100):
        demand = demand.add(NOW - 99 + second, 4)
    return replace(PolicyState(since=NOW - 100, last_at=NOW - 1, demand=demand), **rest)


# Late tokens.

A100 = StepTime(0.0115, 0.00012, 1.2e-7, 5e-5)
MIX = Mix(prompt_tokens=1000, output_tokens=128)
TENTH_LATE = measure(
    [
        replace(
            latencies(0.0, 0.05, 0.012, count=3000),
            **{f"itl_p{p}_s": 0.025 if p == 90 else 0.05 for p in ITL_PERCENTILES if p >= 90},
        )
    ],
    KNOBS,
    ITL_LIMIT_S,
)


def learned(state: PolicyState, measured: Measured, seconds: int, every_s: int = 1) -> PolicyState:
    for second in range(0, seconds, every_s):
        state = learn_interference(state, measured, KNOBS, A100, MIX, 4.0, NOW + second)
        state = replace(state, last_at=NOW + second)
    return state


def test_late_tokens_are_added_up_as_they_come_and_as_they_were_expected() -> None:
    assert TENTH_LATE.itl_missed == pytest.approx(0.1)
    expected = slow_share(A100, MIX, KNOBS.itl_target_s, 4.0 / 2.0)  # four a second, on two replicas

    state = learned(settled(ready_mean=2.0), TENTH_LATE, 1)

    # 3,000 tokens in the last 30 s are 100 a second, and ten of them late.
    assert state.late_tokens == pytest.approx(10)
    assert state.late_tokens_expected == pytest.approx(100 * expected)
    assert state.interference == pytest.approx((10 + 1000) / (100 * expected + 1000))


def test_what_is_learned_of_late_tokens_is_their_ratio_in_the_long_run() -> None:
    expected = slow_share(A100, MIX, KNOBS.itl_target_s, 4.0 / 2.0)
    state = learned(settled(ready_mean=2.0), TENTH_LATE, 10 * 3600, every_s=10)

    # An hour's memory of 100 tokens a second holds 36,000 late ones: the prior of 1,000 is hardly felt.
    assert state.late_tokens == pytest.approx(36_000, rel=0.01)
    assert state.interference == pytest.approx((36_000 + 1000) / (360_000 * expected + 1000), rel=0.01)


@pytest.mark.parametrize(
    ("state", "measured"),
    [
        (settled(ready_mean=0.0), TENTH_LATE),  # none ready
        (settled(ready_mean=2.0, last_at=None), TENTH_LATE),
        (settled(ready_mean=2.0, last_at=NOW + 9), TENTH_LATE),  # a clock set back
        (settled(ready_mean=1.0), TENTH_LATE),  # overloaded: late because of those before
        (settled(ready_mean=2.0), measure([latencies(0, 0.05, 0.05, count=19)], KNOBS, ITL_LIMIT_S)),
    ],
    ids=["none ready", "no decision before", "clock set back", "overload", "few tokens"],
)
def test_what_says_nothing_of_late_tokens_teaches_nothing(state: PolicyState, measured: Measured) -> None:
    assert learn_interference(state, measured, KNOBS, A100, MIX, 4.0, NOW) == state


def test_a_ratio_below_one_goes_on_learning_at_the_load_that_it_makes_fleets_for() -> None:
    """At 0.6 a fleet is loaded until 8 % of late tokens are expected: with the bound at 5 it stayed there."""
    load = 4.3
    assert 0.05 < slow_share(A100, MIX, KNOBS.itl_target_s, load) < 0.08
    state = settled(ready_mean=1.0, late_tokens=2_000.0, late_tokens_expected=4_000.0)
    assert state.interference == pytest.approx(0.6)

    after = learn_interference(state, TENTH_LATE, KNOBS, A100, MIX, load, NOW)

    assert after.late_tokens > state.late_tokens


def test_replicas_are_averaged_over_the_time_that_latencies_are_of() -> None:
    state = remember_ready(settled(), 2, NOW)
    assert state.ready_mean == 2.0  # the first seen is no mean yet

    state = replace(state, last_at=NOW - 10)
    assert remember_ready(state, 4, NOW).ready_mean == pytest.approx(4 - 2 * 2.718 ** (-10 / 30), rel=1e-3)
    assert remember_ready(state, 0, NOW).ready_mean == 0.0


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
