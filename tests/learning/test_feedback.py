from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.learning.feedback import learn_headroom, learn_interference, remember_ready, ttft_missed
from serve_app.learning.observe import latency, observe
from serve_app.learning.state import Minute, PolicyState
from serve_app.policy.capacity_model import Mix, Sizing, StepTime, slow_share
from serve_app.policy.inputs import Latency, Observation
from serve_app.settings.knobs import ITL_PERCENTILES, PERCENTILES, Knobs
from serve_app.wire.signals import EngineSignals, Reading
from tests.policy.build import NOW, snapshot

KNOBS = Knobs(ttft_target_s=0.2, itl_target_s=0.025, ttft_percentile=95)
MIX = Mix(prompt_tokens=1000, output_tokens=128)
SIZING = Sizing(StepTime(0.0115, 0.00012, 1.2e-7, 5e-5), MIX, KNOBS, itl_rps=3.0)


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


def seen(*reports: EngineSignals) -> Observation:
    return observe(snapshot(*[Reading(report, 0.2) for report in reports]), PolicyState(), NOW)[0]


# The share of requests that miss the TTFT target.


@pytest.mark.parametrize(
    ("queue_s", "prefill_s", "misses"),
    [
        (0.16, 0.05, True),  # 0.05 s of prefill leave 0.15 s of the target
        (0.14, 0.05, False),
        (0.11, 0.21, True),  # beside a prefill longer than the target, half of the prefill may be waited
        (0.10, 0.21, False),
    ],
)
def test_only_waits_that_prefill_leaves_no_room_for_are_missed(
    queue_s: float, prefill_s: float, misses: bool
) -> None:
    assert (ttft_missed(seen(latencies(queue_s, prefill_s, 0.01)), KNOBS) > 0.5) is misses


def test_few_long_prompts_do_not_loosen_the_target() -> None:
    mixed = replace(latencies(0.3, 0.05, 0.01), ttft_prefill_p95_s=0.9, ttft_prefill_p99_s=1.5)

    assert ttft_missed(seen(mixed), KNOBS) > 0.4
    assert ttft_missed(seen(), KNOBS) == 0.0


# Late tokens.

LATE = seen(latencies(0.0, 0.05, 0.012, count=3000))


def settled(**rest: Any) -> PolicyState:
    """A fleet that was decided on a second ago."""
    return PolicyState(**{"since": NOW - 100, "last_at": NOW - 1, "ready_mean": 2.0, **rest})


def learned(state: PolicyState, seconds: int, every_s: int = 1) -> PolicyState:
    """The state after so long with a tenth of 100 tokens a second late, at 4 requests/s."""
    for second in range(0, seconds, every_s):
        state = replace(learn_interference(state, LATE, 0.1, SIZING, 4.0, NOW + second), last_at=NOW + second)
    return state


def test_late_tokens_add_up_as_measured_and_as_expected() -> None:
    expected = slow_share(SIZING.step, MIX, KNOBS.itl_target_s, 4.0 / 2.0)  # four a second, on two replicas

    state = learned(settled(), 1)

    assert state.late_tokens == pytest.approx(10)
    assert state.late_tokens_expected == pytest.approx(100 * expected)
    assert state.interference == pytest.approx((10 + 1000) / (100 * expected + 1000))
    # An hour's memory of 100 tokens a second holds 36,000 late ones, so the prior of 1,000 hardly counts.
    state = learned(settled(), 10 * 3600, every_s=10)
    assert state.late_tokens == pytest.approx(36_000, rel=0.01)
    assert state.interference == pytest.approx((36_000 + 1000) / (360_000 * expected + 1000), rel=0.01)


@pytest.mark.parametrize(
    ("state", "observation"),
    [
        (settled(ready_mean=0.0), LATE),
        (settled(last_at=None), LATE),
        (settled(last_at=NOW + 9), LATE),
        (settled(ready_mean=1.0), LATE),
        (settled(), seen(latencies(0, 0.05, 0.05, count=19))),
    ],
    ids=["none ready", "no decision before", "clock set back", "overload", "few tokens"],
)
def test_late_tokens_that_say_nothing_about_the_model_teach_nothing(
    state: PolicyState, observation: Observation
) -> None:
    assert learn_interference(state, observation, 0.1, SIZING, 4.0, NOW) == state


def test_ratio_below_one_learns_at_higher_load() -> None:
    """At 0.6 a fleet is loaded until 8 % of late tokens are expected: with the bound at 5 it stayed there."""
    assert 0.05 < slow_share(SIZING.step, MIX, KNOBS.itl_target_s, 4.3) < 0.08
    state = settled(ready_mean=1.0, late_tokens=2_000.0, late_tokens_expected=4_000.0)
    assert state.interference == pytest.approx(0.6)

    after = learn_interference(state, LATE, 0.1, SIZING, 4.3, NOW)

    assert after.late_tokens > state.late_tokens


def test_ready_replicas_are_averaged_over_the_time_of_the_latencies() -> None:
    first = remember_ready(PolicyState(), 2, NOW)
    later = remember_ready(replace(first, last_at=NOW - 10), 4, NOW)

    assert (first.ready_mean, remember_ready(first, 0, NOW).ready_mean) == (2.0, 0.0)
    assert later.ready_mean == pytest.approx(4 - 2 * 2.718 ** (-10 / 30), rel=1e-3)


# Latencies of many replicas.


def test_percentiles_are_weighted_by_each_replicas_observations() -> None:
    one = EngineSignals(itl_count=300, itl_p50_s=0.010, itl_p95_s=0.020)
    other = EngineSignals(itl_count=100, itl_p50_s=0.030, itl_p95_s=0.060)

    both = latency([one, other, EngineSignals()], "itl")

    assert (both.count, both.at(50), both.at(95)) == (400, pytest.approx(0.015), pytest.approx(0.030))
    assert (latency([], "itl").count, latency([EngineSignals()], "ttft_queue").share_above(0.0)) == (0, 0.0)


@pytest.mark.parametrize(
    ("limit_s", "share"),
    [(0.5, 0.75), (1.0, 0.5), (1.5, 0.3), (2.0, 0.1), (3.0, 0.05), (4.0, 0.03), (5.0, 0.0), (9.0, 0.0)],
)
def test_share_above_a_limit_is_interpolated_between_percentiles(limit_s: float, share: float) -> None:
    observed = Latency(PERCENTILES, ((100.0, 1.0, 2.0, 3.0, 5.0),), 100.0)
    same = Latency(PERCENTILES, ((100.0, 1.0, 1.0, 1.0, 1.0),), 100.0)

    assert observed.share_above(limit_s) == pytest.approx(share)
    assert (same.share_above(0.0), same.share_above(1.0)) == (1.0, 0.0)


def test_share_above_a_limit_is_not_that_of_mean_percentiles() -> None:
    # One replica decodes in 10 ms, one in 30: half of 400 are above 20 ms. Their mean percentiles are 20 ms.
    fast = EngineSignals(itl_count=200, **{f"itl_p{p}_s": 0.010 for p in ITL_PERCENTILES})
    slow = EngineSignals(itl_count=200, **{f"itl_p{p}_s": 0.030 for p in ITL_PERCENTILES})

    # Of the slow one's a third of the lower half is taken to lie below: (1 - 0.5 * 20 / 30) / 2
    assert latency([fast, slow], "itl").share_above(0.020) == pytest.approx(1 / 3)
    # 3 % also prefill: between the 97th percentile and the 98th the latency jumps from 13 to 60 ms.
    jump = {f"itl_p{p}_s": 0.013 if p <= 97 else 0.060 for p in ITL_PERCENTILES}
    share = latency([EngineSignals(itl_count=1000, **jump)], "itl").share_above(0.025)
    assert share == pytest.approx(0.03 - 0.01 * 12 / 47)


@given(st.lists(st.lists(st.floats(0, 1e15), min_size=5, max_size=5), max_size=4), st.floats(0, 1e15))
def test_percentiles_out_of_order_still_give_a_share(rows: list[list[float]], limit: float) -> None:
    rows = [[count + 1.0, *rest] for count, *rest in rows]
    observed = Latency(PERCENTILES, tuple(tuple(row) for row in rows), sum(row[0] for row in rows))

    assert 0.0 <= observed.share_above(limit) <= 1.0


# The headroom.

FEW = seen(latencies(0.0, 0.05, 0.01, count=9))
MANY = seen(latencies(0.0, 0.05, 0.01))
FINE, LATE_REQUESTS, LATE_TOKENS = (0.04, 0.04), (0.06, 0.0), (0.0, 0.06)


def headroom_after(
    seconds: int,
    missed: tuple[float, float],
    *,
    observation: Observation = MANY,
    ready: int = 4,
    before: int | None = None,
    load: float = 4.0,
    start_s: float = 60.0,
    knobs: Knobs = KNOBS,
    headroom: float = 0.0,
) -> float:
    """The headroom after so long with these misses, from the beginning of a minute with `before` replicas."""
    minute = Minute(NOW - 1, ready if before is None else before)
    state = PolicyState(last_at=NOW - 1, minute=minute, learned_headroom=headroom)
    for second in range(seconds):
        state = learn_headroom(state, observation, missed, knobs, ready, load, start_s, NOW + second)
        state = replace(state, last_at=NOW + second)
    return state.learned_headroom


@pytest.mark.parametrize("missed", [LATE_REQUESTS, LATE_TOKENS])
def test_missed_minute_adds_headroom_at_its_end(missed: tuple[float, float]) -> None:
    assert headroom_after(59, missed) == 0.0
    assert headroom_after(60, missed) == headroom_after(119, missed) == pytest.approx(0.35 * 0.99)
    assert headroom_after(3600, missed) == 2.0


@pytest.mark.parametrize(("slo_attainment", "minutes"), [(0.99, 99), (0.9, 9)])
def test_headroom_of_one_miss_lasts_by_slo(slo_attainment: float, minutes: int) -> None:
    knobs = KNOBS.model_copy(update={"slo_attainment": slo_attainment})
    step = 0.35 * slo_attainment
    assert headroom_after(60, LATE_TOKENS, knobs=knobs) == pytest.approx(step)
    for seconds, left in ((60 * minutes, 0.0), (30 * minutes, step / 2), (7200, 0.0)):
        after = headroom_after(seconds, FINE, knobs=knobs, headroom=step)
        assert after == pytest.approx(left, abs=step / minutes)


def test_minutes_missed_during_one_long_start_count_as_one_error() -> None:
    assert headroom_after(180, LATE_TOKENS, start_s=180.0) == pytest.approx(headroom_after(60, LATE_TOKENS))


def test_minutes_with_few_requests_leave_the_headroom_as_it_is() -> None:
    assert headroom_after(120, (0.5, 0.5), observation=FEW, headroom=0.3) == 0.3


def test_a_miss_that_no_headroom_would_have_prevented_teaches_nothing() -> None:
    # Four replicas with the most headroom there may be carry the load of eight.
    assert headroom_after(60, LATE_TOKENS, load=8.0) > 0.0
    assert headroom_after(60, LATE_TOKENS, load=8.1) == 0.0
    assert headroom_after(60, LATE_TOKENS, ready=0, load=0.1) == 0.0
    # Twelve replicas that came within the minute count only where a start is shorter than the minute.
    assert headroom_after(60, LATE_TOKENS, ready=12, before=1, load=10.0, start_s=3.0) > 0.0
    assert headroom_after(60, LATE_TOKENS, ready=12, before=1, load=10.0, start_s=75.0) == 0.0
