import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.policy.capacity_model import (
    MOST_REPLICAS,
    Mix,
    Sizing,
    StepTime,
    capacity_rps,
    feasibility,
    itl_rps,
    round_up,
    slow_share,
)
from serve_app.settings.knobs import Knobs

A100 = StepTime(0.0115, 0.00012, 1.2e-7, 5e-5)
"""Seconds a step, a sequence, a KV token and a prefill token, of a 7B model on an A100."""
MIX = Mix(prompt_tokens=1000, output_tokens=128)
KNOBS = Knobs(ttft_target_s=0.2, itl_target_s=0.025)
NO_LIMIT = 0.0


def test_an_a100_serves_four_requests_a_second_of_1000_tokens() -> None:
    assert capacity_rps(A100, MIX, KNOBS, NO_LIMIT) == pytest.approx(3.75, rel=0.02)
    # One that generates nothing has no inter-token latency to miss.
    embedding = Mix(prompt_tokens=1000, output_tokens=1.0)
    assert capacity_rps(A100, embedding, KNOBS, NO_LIMIT) > capacity_rps(A100, MIX, KNOBS, NO_LIMIT)


# Late tokens.


def test_late_tokens_are_those_of_steps_with_long_prompts() -> None:
    # A request takes 128 * (0.12 + 0.128) ms of decoding and 50 ms of prefill beyond the base: 81.7 ms. At 3
    # a second the mean step is 11.5 / (1 - 0.245) = 15.2 ms, 5.85 run, and a decoding step takes
    # 11.5 + 5.85 * 0.248 = 12.95 ms. 12.05 ms are left: exp(-12.05 / 50) = 0.786 of the prompts are too long.
    # 3 * 0.786 of them a second, among (1 - 3 * 0.05) / 0.01295 = 65.6 steps: 3.6 %.
    assert slow_share(A100, MIX, 0.025, 3.0) == pytest.approx(0.036, rel=0.01)


def test_an_overloaded_replica_has_only_late_tokens() -> None:
    assert slow_share(A100, MIX, 0.025, 0.0) == 0.0
    assert slow_share(A100, MIX, 0.025, 12.0) == 1.0  # 12 * 81.7 ms in a second
    assert slow_share(A100, MIX, 0.011, 1.0) == 1.0  # less than a step
    assert slow_share(replace(A100, per_prefill_token_s=0.0), MIX, 0.025, 3.0) == 0.0  # prompts cost nothing


mixes = st.builds(Mix, st.floats(10, 20_000), st.floats(0.01, 1), st.floats(2, 2000))


@given(mixes, st.floats(0.012, 1.0), st.floats(0.001, 30), st.floats(1, 3))
def test_more_requests_never_make_fewer_tokens_late(
    mix: Mix, itl_target_s: float, rate: float, more: float
) -> None:
    once, again = (slow_share(A100, mix, itl_target_s, factor * rate) for factor in (1.0, more))

    assert 0.0 <= once <= again <= 1.0


SLOW_TTFT = KNOBS.model_copy(update={"ttft_target_s": 2.0})


def test_capacity_has_exactly_the_allowed_late_tokens() -> None:
    rate = capacity_rps(A100, MIX, SLOW_TTFT, NO_LIMIT)

    assert slow_share(A100, MIX, KNOBS.itl_target_s, rate) == pytest.approx(0.05, rel=0.001)


def test_twice_the_late_tokens_cost_less_than_half_the_capacity() -> None:
    # Half of the rate would bring decoding steps down as well, and so leave more of the target for prompts.
    rate = capacity_rps(A100, MIX, SLOW_TTFT, NO_LIMIT, interference=2.0)

    assert slow_share(A100, MIX, KNOBS.itl_target_s, rate) == pytest.approx(0.025, rel=0.001)
    assert rate == pytest.approx(0.6 * capacity_rps(A100, MIX, SLOW_TTFT, NO_LIMIT), rel=0.03)


# Time to first token.

LOOSE = KNOBS.model_copy(update={"itl_target_s": 1.0})


def test_ttft_limits_capacity_where_waiting_fills_the_target() -> None:
    # Alone: 1.5 decoding steps, 50 ms of prefill, and s / (1 - u) * ln(u / 0.05) of waiting are 0.2 s.
    rate = capacity_rps(A100, MIX, LOOSE, NO_LIMIT)

    decode_s = A100.base_s + 0.0002477 * rate * 128 * 0.0115 / (1 - rate * A100.work_s(MIX))
    service_s = decode_s + 0.05
    busy = rate * service_s
    wait_s = service_s / (1 - busy) * math.log(busy / 0.05)
    assert 1.5 * decode_s + 0.05 + wait_s == pytest.approx(0.2, rel=0.002)


def test_each_of_more_replicas_serves_more() -> None:
    rates = [capacity_rps(A100, MIX, LOOSE, NO_LIMIT, 1.0, replicas) for replicas in (1, 2, 4, 16, 64, 256)]

    assert rates == sorted(rates)
    # A request waits only where all are busy: two serve more than twice as much, many are nearly full.
    assert rates[1] > 1.3 * rates[0]
    assert rates[-1] < 1.1 * rates[-2]


@given(
    mixes, st.floats(0.05, 5), st.floats(0.012, 1), st.floats(0.01, 100), st.floats(1, 64), st.floats(1, 4)
)
def test_capacity_falls_with_interference_and_rises_with_fleet(
    mix: Mix, ttft_s: float, itl_s: float, interference: float, replicas: float, more: float
) -> None:
    knobs = Knobs(ttft_target_s=ttft_s, itl_target_s=itl_s)
    capacity = capacity_rps(A100, mix, knobs, 200_000.0, interference, replicas)
    near = 1.001

    assert 0.0 < capacity < math.inf
    assert capacity_rps(A100, mix, knobs, 200_000.0, interference * more, replicas) <= capacity * near + 1e-4
    assert capacity_rps(A100, mix, knobs, 200_000.0, interference, replicas * more) >= capacity / near - 1e-4


def test_infeasible_targets_use_an_empty_replicas_limit() -> None:
    long = replace(MIX, prompt_tokens=8000.0)
    alone = feasibility(A100, long, KNOBS)

    assert alone.ttft_s == pytest.approx(0.0115 + 8000 / 20_000)
    assert (alone.ttft, alone.itl) == (False, True)
    assert alone.ttft_limit_s == pytest.approx(1.5 * alone.ttft_s)
    assert alone.itl_limit_s == KNOBS.itl_target_s

    strict = feasibility(A100, MIX, KNOBS.model_copy(update={"itl_target_s": 0.010}))
    assert not strict.itl
    assert strict.itl_limit_s == pytest.approx(1.25 * strict.itl_s)


@pytest.mark.parametrize("target", ["itl_target_s", "ttft_target_s"])
def test_capacity_has_no_jump_where_a_target_becomes_infeasible(target: str) -> None:
    """Steps 2.10 times the A100's held 32 replicas at 12 requests/s, 2.15 times three."""
    alone = feasibility(A100, MIX, KNOBS)
    at_s = alone.itl_s if target == "itl_target_s" else alone.ttft_s

    def served(factor: float) -> float:
        knobs = KNOBS.model_copy(update={target: factor * at_s})
        return capacity_rps(A100, MIX, knobs, NO_LIMIT, replicas=10)

    assert served(0.5) == served(0.99) == served(1.01) > 0.5
    assert served(1.01) <= served(1.7) <= served(3.0)


def test_the_kv_cache_bounds_what_runs_at_once() -> None:
    loose = KNOBS.model_copy(update={"itl_target_s": 1.0, "ttft_target_s": 10.0})
    small = 20_000.0  # 18,000 to plan for: 16.9 requests of 1,064 tokens

    capacity = capacity_rps(A100, MIX, loose, small)

    mean_step = A100.base_s / (1 - capacity * A100.work_s(MIX))
    assert capacity * 128 * mean_step * 1064 == pytest.approx(0.9 * small, rel=0.01)
    assert capacity < capacity_rps(A100, MIX, loose, NO_LIMIT)


def sizing(headroom: float = 0.0, itl_rps: float = 3.0, **knobs: float) -> Sizing:
    """A sizing in which each replica serves three requests per second, however many there are."""
    return Sizing(A100, MIX, Knobs(**knobs), itl_rps, headroom=headroom)


def pooled(headroom: float = 0.0) -> Sizing:
    """A sizing limited by time to first token, in which each replica of a larger fleet serves more."""
    return sizing(headroom, itl_rps=9.0)


@pytest.mark.parametrize(
    ("rps", "headroom", "replicas"),
    [(0, 1, 0), (0.01, 0, 1), (3, 0, 1), (3.1, 0, 2), (12, 0, 4), (12, 1, 6), (12, 0.5, 5), (300, 1, 110)],
)
def test_replicas_for_a_rate_are_load_and_headroom(rps: float, headroom: float, replicas: int) -> None:
    # 12 a second are 4 replicas of load; sqrt(4) = 2 more with headroom 1.
    assert sizing(headroom).replicas(rps) == replicas


def test_rps_of_a_pool_is_the_capacity_of_its_fleet() -> None:
    knobs = Knobs()
    learned = Sizing(A100, MIX, knobs, itl_rps(A100, MIX, knobs, 200_000.0, 2.0))

    for replicas in (1, 2, 7):
        assert learned.rps(replicas) == capacity_rps(A100, MIX, knobs, 200_000.0, 2.0, replicas)
    assert learned.rps(1000) == learned.rps(64)
    assert learned.rps(0) == learned.rps(1)


@given(st.floats(0.01, 200), st.floats(0, 3))
def test_replicas_for_a_rate_are_the_fewest(rps: float, headroom: float) -> None:
    fleet = pooled(headroom)

    count = fleet.replicas(rps)

    assert fleet.most_rps(count) >= rps * (1 - 1e-5)
    assert count == 1 or fleet.most_rps(count - 1) < rps * (1 + 1e-5)


def test_whole_replicas_are_a_number_within_reason() -> None:
    assert [round_up(value) for value in (-1.0, 0.0, 0.1, 3.0000001, 3.1)] == [0, 0, 1, 3, 4]
    assert round_up(1e300) == sizing().replicas(1e300) == MOST_REPLICAS
