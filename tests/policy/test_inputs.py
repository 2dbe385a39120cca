from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.policy.capacity_model import Mix, Sizing, StepTime, slow_share
from serve_app.policy.decide import Decision
from serve_app.policy.inputs import (
    Inputs,
    learn,
    learn_headroom,
    learn_interference,
    remember_ready,
    ttft_missed,
)
from serve_app.policy.reports import Latency, Observation, Snapshot, latency, observe
from serve_app.policy.state import Minute, PolicyState
from serve_app.policy.step_time_fit import StepTimeFit
from serve_app.settings.knobs import ITL_PERCENTILES, PERCENTILES, Knobs, StartingValues
from serve_app.wire.signals import EngineSignals, Reading
from tests.policy.build import NOW, PolicyLoop, engine, ingress, snapshot

CPU = StartingValues(
    step_base_s=0.004,
    step_per_sequence_s=0.00027,
    step_per_kv_token_s=4.3e-7,
    step_per_prefill_token_s=6.4e-5,
    cold_start_s=(22.0, 26.0),
)
L4 = CPU.model_copy(update={"step_base_s": 0.064, "step_per_prefill_token_s": 2.65e-4})
KNOBS = Knobs(max_replicas=20)
BUSY = engine(running_requests=2, steps=60, step_s=0.012, step_batch=2, step_kv_tokens=1200)


def with_values(values: StartingValues | None) -> Knobs:
    return KNOBS.model_copy(update={"starting_values": values})


def learned(seen: Snapshot, knobs: Knobs, state: PolicyState) -> Inputs:
    inputs, _ = learn(seen, knobs, state, NOW)
    return inputs


def arriving(loop: PolicyLoop, rps: float, seconds: int = 40) -> Decision:
    """Requests come and none has been answered."""
    for second in range(seconds):
        front = ingress(arrivals_total=rps * second, arrived_bytes_total=2048 * rps * second)
        decision = loop.decide(snapshot(engine(), at={"i0": front}))
    return decision


def why(decision: Decision, term: str) -> str:
    return next(found.why for found in decision.terms if found.name == term)


def test_without_starting_values_the_general_prior_is_used() -> None:
    loop = PolicyLoop(KNOBS)
    decision = loop.decide(snapshot(engine()))

    assert loop.state.service == StepTimeFit()
    assert loop.state.started_with is None
    assert decision.notes == ()


def test_starting_values_size_the_fleet_before_the_first_step() -> None:
    slow, usual = arriving(PolicyLoop(with_values(L4)), 12.0), arriving(PolicyLoop(KNOBS), 12.0)

    assert slow.signals["step_base_s"] == pytest.approx(0.064)
    assert slow.target > usual.target
    assert why(slow, "demand").count("requests/s (from starting_values), so") == 1
    assert "starting_values" not in why(usual, "demand")


def test_notes_say_which_values_are_not_measured_yet() -> None:
    loop = PolicyLoop(with_values(CPU))

    assert loop.decide(snapshot(engine())).notes == (
        "starting_values: No step is measured yet, so they give the capacity of a replica.",
        "starting_values: No start is measured yet, so 24 s are assumed.",
    )
    assert loop.decide(snapshot(BUSY)).notes == (
        "starting_values: No start is measured yet, so 24 s are assumed.",
    )
    assert loop.decide(snapshot(BUSY, warm_node_start_s=3.0)).notes == (
        "starting_values: No start on a cold node is measured yet, so 24 s are assumed.",
    )
    assert loop.decide(snapshot(BUSY, cold_node_start_s=31.0)).notes == ()


def test_the_assumed_start_is_the_horizon_until_one_is_measured() -> None:
    loop = PolicyLoop(with_values(CPU))

    def horizon_s(seen: Snapshot) -> float:
        return learned(seen, loop.knobs, loop.state).snapshot.horizon_s

    assert horizon_s(snapshot(BUSY)) == 24.0
    assert horizon_s(snapshot(BUSY, cold_node_start_s=31.0)) == 31.0
    loop.knobs = KNOBS
    assert horizon_s(snapshot(BUSY)) == 60.0


@pytest.mark.parametrize(("start_s", "seconds"), [(43.0, 110.0), (3.0, 60.0)])
def test_scale_down_waits_until_a_rise_is_visible(start_s: float, seconds: float) -> None:
    knobs = KNOBS.model_copy(update={"downscale_delay_s": 10.0, "downscale_to_zero_delay_s": 60.0})
    seen = snapshot(engine(), cold_node_start_s=start_s)

    assert learned(seen, knobs, PolicyState(since=NOW)).unobserved_s == seconds
    unforeseen = knobs.model_copy(update={"forecast": False})
    assert learned(seen, unforeseen, PolicyState(since=NOW)).unobserved_s == 60.0


def test_assumed_kv_cache_counts_until_reported() -> None:
    small = CPU.model_copy(update={"kv_cache_tokens": 1024})
    unknown, known = engine(kv_cache_tokens=0.0), engine()

    def capacity(values: StartingValues, reading: object) -> float:
        decision = PolicyLoop(with_values(values)).decide(snapshot(reading))  # type: ignore[arg-type]
        return decision.signals["replica_capacity_rps"]

    assert capacity(small, unknown) < 0.5 * capacity(CPU, unknown)
    assert capacity(small, known) == capacity(CPU, known)


def test_changed_starting_values_replace_a_prior_without_steps() -> None:
    loop = PolicyLoop(with_values(CPU))
    loop.decide(snapshot(engine()))

    loop.knobs = with_values(L4)
    loop.decide(snapshot(engine()))
    assert loop.state.service.step_time().base_s == pytest.approx(0.064)
    loop.knobs = KNOBS
    loop.decide(snapshot(engine()))
    assert loop.state.service == StepTimeFit()


def test_changed_starting_values_leave_a_learned_fit_alone() -> None:
    once, changed = PolicyLoop(with_values(CPU)), PolicyLoop(with_values(CPU))
    for loop in (once, changed):
        loop.decide_for(30, snapshot(BUSY))
    changed.knobs = with_values(L4)
    for loop in (once, changed):
        loop.decide_for(5, snapshot(BUSY))

    assert changed.state.service == once.state.service
    assert changed.state.started_with == StepTime(*CPU.coefficients)


TARGETS = Knobs(ttft_target_s=0.2, itl_target_s=0.025, ttft_percentile=95)
MIX = Mix(prompt_tokens=1000, output_tokens=128)
SIZING = Sizing(StepTime(0.0115, 0.00012, 1.2e-7, 5e-5), MIX, TARGETS, itl_rps=3.0)


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
    assert (ttft_missed(seen(latencies(queue_s, prefill_s, 0.01)), TARGETS) > 0.5) is misses


def test_few_long_prompts_do_not_loosen_the_target() -> None:
    mixed = replace(latencies(0.3, 0.05, 0.01), ttft_prefill_p95_s=0.9, ttft_prefill_p99_s=1.5)

    assert ttft_missed(seen(mixed), TARGETS) > 0.4
    assert ttft_missed(seen(), TARGETS) == 0.0


# Late tokens.

LATE = seen(latencies(0.0, 0.05, 0.012, count=3000))


def settled(**rest: Any) -> PolicyState:
    """A fleet that was decided on a second ago."""
    return PolicyState(**{"since": NOW - 100, "last_at": NOW - 1, "ready_mean": 2.0, **rest})


def learned_late(state: PolicyState, seconds: int, every_s: int = 1) -> PolicyState:
    """The state after so long with a tenth of 100 tokens a second late, at 4 requests/s."""
    for second in range(0, seconds, every_s):
        state = replace(learn_interference(state, LATE, 0.1, SIZING, 4.0, NOW + second), last_at=NOW + second)
    return state


def test_late_tokens_add_up_as_measured_and_as_expected() -> None:
    expected = slow_share(SIZING.step, MIX, TARGETS.itl_target_s, 4.0 / 2.0)  # four a second, on two replicas

    state = learned_late(settled(), 1)

    assert state.late_tokens == pytest.approx(10)
    assert state.late_tokens_expected == pytest.approx(100 * expected)
    assert state.interference == pytest.approx((10 + 1000) / (100 * expected + 1000))
    # An hour's memory of 100 tokens a second holds 36,000 late ones, so the prior of 1,000 hardly counts.
    state = learned_late(settled(), 10 * 3600, every_s=10)
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
    assert 0.05 < slow_share(SIZING.step, MIX, TARGETS.itl_target_s, 4.3) < 0.08
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
    knobs: Knobs = TARGETS,
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
    knobs = TARGETS.model_copy(update={"slo_attainment": slo_attainment})
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
