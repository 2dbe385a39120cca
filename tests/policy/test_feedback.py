from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.policy.capacity_model import Mix, StepTime, slow_share
from serve_app.policy.demand import Demand
from serve_app.policy.feedback import (
    Latency,
    Measured,
    correct,
    latency,
    learn_headroom,
    learn_interference,
    measure,
    remember_ready,
)
from serve_app.policy.state import Minute, PolicyState
from serve_app.settings.knobs import ITL_PERCENTILES, PERCENTILES, Knobs
from serve_app.wire.signals import EngineSignals
from tests.policy.build import NOW

KNOBS = Knobs(ttft_target_s=0.2, itl_target_s=0.025, ttft_percentile=95)
ITL_ALONE_S = 0.012


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
    assert measure([latencies(0.16, 0.05, 0.01)], KNOBS, ITL_ALONE_S).ttft_missed > 0.5
    assert measure([latencies(0.14, 0.05, 0.01)], KNOBS, ITL_ALONE_S).ttft_missed == 0.0


def test_a_prefill_longer_than_the_target_is_infeasible_and_no_miss() -> None:
    measured = measure([latencies(5.0, 0.21, 0.01)], KNOBS, ITL_ALONE_S)

    assert not measured.ttft_feasible
    assert measured.ttft_missed == 0.0


def test_a_few_long_prompts_do_not_call_off_the_target_of_the_others() -> None:
    mixed = replace(latencies(0.3, 0.05, 0.01), ttft_prefill_p95_s=0.9, ttft_prefill_p99_s=1.5)

    measured = measure([mixed], KNOBS, ITL_ALONE_S)

    assert measured.ttft_feasible
    assert measured.ttft_missed > 0.4


def test_inter_token_latency_that_a_single_sequence_misses_is_infeasible_and_no_miss() -> None:
    slow = latencies(0.0, 0.05, 0.04)

    assert measure([slow], KNOBS, ITL_ALONE_S).itl_missed > 0.5
    infeasible = measure([slow], KNOBS, lowest_itl_s=0.03)
    assert (infeasible.itl_feasible, infeasible.itl_missed) == (False, 0.0)


def test_nothing_measured_is_nothing_missed() -> None:
    measured = measure([], KNOBS, ITL_ALONE_S)

    assert (measured.ttft_missed, measured.itl_missed, measured.ttft_feasible) == (0.0, 0.0, True)


# What follows from it.

FINE = measure([latencies(0.0, 0.05, 0.012)], KNOBS, ITL_ALONE_S)
BAD = measure(
    [replace(latencies(0.3, 0.05, 0.012), ttft_queue_p50_s=0.0, ttft_queue_p90_s=0.2)], KNOBS, ITL_ALONE_S
)
"""0.15 s are left for the wait, at three quarters of the way from P50 to P90: 20 % miss."""


def settled(**rest: object) -> PolicyState:
    """A fleet that has not changed for a minute, looked at a second ago, under four requests a second."""
    demand = Demand().add(NOW - 100, 0)
    for second in range(100):
        demand = demand.add(NOW - 99 + second, 4)
    return replace(PolicyState(since=NOW - 100, moved_at=NOW - 60, last_at=NOW - 1, demand=demand), **rest)


def corrected(state: PolicyState, measured: Measured, seconds: int, ready: int = 4) -> PolicyState:
    for second in range(seconds):
        state = correct(state, measured, KNOBS, ready, ready, NOW + second)
        state = replace(state, last_at=NOW + second)
    return state


SOME = measure([replace(latencies(0.0, 0.05, 0.012), ttft_queue_p99_s=0.3)], KNOBS, ITL_ALONE_S)
"""3 %: half of the way from the 95th percentile to the 99th."""
LATE = measure([latencies(0.0, 0.05, 0.05)], KNOBS, ITL_ALONE_S)


@pytest.mark.parametrize(
    ("before", "measured", "seconds", "ready", "correction"),
    [
        (1.0, BAD, 23, 4, pytest.approx(0.5, rel=0.05)),  # more miss than permitted
        (1.0, SOME, 60, 4, 1.0),
        (0.5, FINE, 600, 4, pytest.approx(0.5 * 2.718 ** (1 / 3), rel=0.01)),  # much slower than it goes
        (1.0, BAD, 300, 4, 0.25),  # the bounds
        (1.0, FINE, 7200, 4, 1.0),
        (1.0, LATE, 60, 4, 1.0),  # late tokens are left to what is learned of them
        (0.5, FINE, 600, 1, 0.5),  # one replica fewer would be none
    ],
)
def test_a_replica_is_trusted_with_less_after_misses_and_with_more_long_after_them(
    before: float, measured: Measured, seconds: int, ready: int, correction: object
) -> None:
    assert BAD.ttft_missed == pytest.approx(0.2)
    assert 0.02 < SOME.ttft_missed < 0.05
    assert LATE.itl_missed > 0.5

    assert corrected(settled(correction=before), measured, seconds, ready).correction == correction


@pytest.mark.parametrize(
    "state",
    [settled(moved_at=NOW - 29), settled(moved_at=None), settled(last_at=None), settled(last_at=NOW + 50)],
)
def test_latencies_of_another_fleet_or_time_correct_nothing(state: PolicyState) -> None:
    assert correct(state, BAD, KNOBS, 4, 4, NOW).correction == 1.0


def test_a_fleet_in_transition_corrects_nothing() -> None:
    assert correct(settled(), BAD, KNOBS, 3, 4, NOW).correction == 1.0
    assert correct(settled(), BAD, KNOBS, 0, 0, NOW).correction == 1.0


def test_a_handful_of_observations_corrects_nothing() -> None:
    few = measure([latencies(9.0, 0.05, 0.9, count=19)], KNOBS, ITL_ALONE_S)

    assert correct(settled(), few, KNOBS, 4, 4, NOW).correction == 1.0


def test_a_long_pause_between_decisions_counts_as_ten_seconds() -> None:
    after_pause = correct(settled(last_at=NOW - 3600), BAD, KNOBS, 4, 4, NOW)

    assert after_pause.correction == pytest.approx(2.718**-0.3, rel=0.01)


# A scale-down that was one too many.

SCALED_DOWN = (NOW - 50, 0.8, 4.0)
"""(time, correction, requests a second)"""


def test_misses_after_a_scale_down_limit_the_trust_that_led_to_it() -> None:
    state = correct(settled(correction=0.8, lowered=SCALED_DOWN), BAD, KNOBS, 4, 4, NOW)

    assert state.correction == pytest.approx(0.9 * 0.8)
    assert state.lowered is None

    assert corrected(replace(state, last_at=NOW), FINE, 3600).correction == pytest.approx(0.9 * 0.8)


def test_the_limit_ends_after_six_hours() -> None:
    state = correct(settled(correction=0.8, lowered=SCALED_DOWN), BAD, KNOBS, 4, 4, NOW)

    later = replace(state, last_at=NOW + 21_601)
    assert correct(later, FINE, KNOBS, 4, 4, NOW + 21_602).correction > 0.9 * 0.8


def test_a_second_regret_lowers_the_limit_and_never_raises_it() -> None:
    once = correct(settled(correction=0.8, lowered=SCALED_DOWN), BAD, KNOBS, 4, 4, NOW)
    again = correct(replace(once, lowered=(NOW, 1.0, 4.0), last_at=NOW), BAD, KNOBS, 4, 4, NOW + 1)

    assert again.correction_limit == pytest.approx(0.9 * 0.8)


@pytest.mark.parametrize(
    "lowered",
    [
        (NOW - 601, 0.8, 4.0),  # too long ago
        (NOW + 10, 0.8, 4.0),  # by a clock that was set back
        (NOW - 50, 0.8, 3.0),  # a third more load than then
        None,
    ],
)
def test_misses_that_are_not_the_scale_downs_limit_nothing(
    lowered: tuple[float, float, float] | None,
) -> None:
    state = correct(settled(correction=0.8, lowered=lowered), BAD, KNOBS, 4, 4, NOW)

    assert state.limited_until == 0.0
    assert state.correction == pytest.approx(0.8 * 2.718**-0.03, rel=0.01)


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
    ITL_ALONE_S,
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


def test_late_tokens_after_a_scale_down_limit_the_trust_that_led_to_it() -> None:
    """Twice the permitted share: or a constant load would see a replica go and come back."""
    state = correct(settled(correction=0.8, lowered=SCALED_DOWN), TENTH_LATE, KNOBS, 4, 4, NOW)

    assert state.correction == pytest.approx(0.9 * 0.8)
    assert state.lowered is None


def test_late_tokens_limit_it_once_however_many_scale_downs_follow() -> None:
    """They are learned from besides: over an evening of steps down the limits would pile up."""
    once = correct(settled(correction=0.8, lowered=SCALED_DOWN), TENTH_LATE, KNOBS, 4, 4, NOW)
    down = replace(once, lowered=(NOW + 60, 0.72, 4.0), last_at=NOW + 60)

    again = correct(down, TENTH_LATE, KNOBS, 3, 3, NOW + 61)

    assert again.correction_limit == once.correction_limit
    assert again.limited_until == once.limited_until


def test_a_few_late_tokens_too_many_limit_nothing() -> None:
    few = replace(TENTH_LATE, itl_missed=0.07)

    state = correct(settled(correction=0.8, lowered=SCALED_DOWN), few, KNOBS, 4, 4, NOW)

    assert (state.limited_until, state.lowered) == (0.0, SCALED_DOWN)


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
        (settled(ready_mean=2.0), measure([latencies(0, 0.05, 0.05, count=19)], KNOBS, ITL_ALONE_S)),
        (settled(ready_mean=2.0), measure([latencies(0, 0.05, 0.05)], KNOBS, lowest_itl_s=0.03)),
    ],
    ids=["none ready", "no decision before", "clock set back", "overload", "few tokens", "infeasible"],
)
def test_what_says_nothing_of_late_tokens_teaches_nothing(state: PolicyState, measured: Measured) -> None:
    assert learn_interference(state, measured, KNOBS, A100, MIX, 4.0, NOW) == state


def with_headroom(
    measured: Measured,
    seconds: int,
    *,
    fleet: tuple[int, int] = (4, 4),
    start_s: float = 75.0,
    knobs: Knobs = KNOBS,
    **rest: object,
) -> PolicyState:
    """So many seconds of these latencies, from the beginning of a minute."""
    state = settled(minute=Minute(NOW - 1), **rest)
    for second in range(seconds):
        state = learn_headroom(state, measured, knobs, fleet, start_s, NOW + second)
        state = replace(state, last_at=NOW + second)
    return state


@pytest.mark.parametrize("measured", [BAD, LATE])
def test_a_minute_that_misses_its_targets_adds_headroom_at_its_end(measured: Measured) -> None:
    assert with_headroom(measured, 59).learned_headroom == 0.0
    assert with_headroom(measured, 60).learned_headroom == pytest.approx(0.5 * 0.99)
    assert with_headroom(measured, 119).learned_headroom == pytest.approx(0.5 * 0.99)
    assert with_headroom(measured, 3600).learned_headroom == 2.0


@pytest.mark.parametrize(("slo_attainment", "minutes"), [(0.99, 99), (0.9, 9)])
def test_it_takes_as_many_minutes_within_their_targets_to_take_it_away_as_are_promised(
    slo_attainment: float, minutes: int
) -> None:
    knobs = KNOBS.model_copy(update={"slo_attainment": slo_attainment})
    step = 0.5 * slo_attainment
    assert with_headroom(BAD, 60, knobs=knobs).learned_headroom == pytest.approx(step)
    for seconds, left in ((60 * minutes, 0.0), (30 * minutes, step / 2), (7200, 0.0)):
        after = with_headroom(SOME, seconds, knobs=knobs, learned_headroom=step).learned_headroom
        assert after == pytest.approx(left, abs=step / minutes)


@pytest.mark.parametrize(
    "rest",
    [
        {"fleet": (3, 4)},  # one is starting: until it is there, tokens are late whatever the headroom
        {"fleet": (0, 0)},
        {"moved_at": NOW + 119},
        {"knobs": KNOBS, "measured": measure([latencies(0.3, 0.05, 0.05, 0.1)], KNOBS, ITL_ALONE_S)},
    ],
)
def test_what_says_nothing_of_the_headroom_moves_it_neither_way(rest: dict[str, object]) -> None:
    measured = rest.pop("measured", BAD)
    assert with_headroom(measured, 120, learned_headroom=0.3, **rest).learned_headroom == 0.3  # type: ignore[arg-type]


def test_a_replica_that_starts_fast_has_settled_soon() -> None:
    assert with_headroom(BAD, 60, moved_at=NOW, start_s=3.0).learned_headroom > 0
    assert with_headroom(BAD, 60, moved_at=NOW + 29, start_s=75.0).learned_headroom == 0


def test_headroom_stays_while_a_fleet_that_was_too_small_is_not_tried_again() -> None:
    limited = {"limited_until": NOW + 9000, "correction_limit": 0.9, "learned_headroom": 0.4}
    assert with_headroom(FINE, 600, **limited).learned_headroom == 0.4  # type: ignore[arg-type]
    assert with_headroom(BAD, 60, **limited).learned_headroom > 0.4  # type: ignore[arg-type]


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
