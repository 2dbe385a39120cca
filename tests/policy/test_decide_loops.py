"""The policy in closed loops with a fake fleet: what it does over tens of minutes."""

import json
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.learning.state import PolicyState, restore
from serve_app.policy.capacity_model import StepTime
from serve_app.settings.knobs import Knobs
from tests.policy.fake_plant import A100, FakePlant, Tick, changes

TWICE_AS_FAST = StepTime(0.00575, 0.00006, 6e-8, 2.5e-5)
HALF_AS_FAST = StepTime(0.023, 0.00024, 2.4e-7, 1e-4)


def knobs(**changed: Any) -> Knobs:
    return Knobs(min_replicas=0, max_replicas=32).model_copy(update=changed)


def ups(ticks: list[Tick]) -> int:
    return sum(before < after for _, before, after in changes(ticks))


def missing(ticks: list[Tick]) -> float:
    """The share of the time in which more of the latencies missed their target than may."""
    signals = [tick.decision.explanation.signals for tick in ticks]
    return sum(max(s["itl_missed_ratio"], s["ttft_missed_ratio"]) > 0.055 for s in signals) / len(ticks)


@pytest.mark.parametrize(
    ("rate", "prompt", "output", "step"),
    [
        (0.3, 1000, 128, A100),
        (4.0, 1000, 128, A100),
        (5.0, 1000, 128, TWICE_AS_FAST),
        (3.0, 3700, 128, TWICE_AS_FAST),
        (1.3, 3700, 128, A100),
        (1.3, 300, 300, HALF_AS_FAST),
    ],
)
def test_a_constant_load_gets_a_constant_fleet(rate: float, prompt: int, output: int, step: StepTime) -> None:
    plant = FakePlant(knobs(), lambda _: rate, prompt=prompt, output=output, step=step, replicas=2)
    plant.run(900)

    later = plant.run(1800)

    # In half an hour at most one attempt with a replica fewer, and back.
    assert len(changes(later)) <= 2
    assert ups(later) <= 1
    assert max(tick.queued for tick in later[-900:]) <= 8
    assert missing(later) < 0.05


def test_a_constant_rate_of_random_arrivals_makes_no_replica_come_and_go() -> None:
    """12 Poisson arrivals a second took a replica away and brought it back 22 times an hour."""
    counts = np.random.default_rng(0).poisson(12.0, 3600)
    plant = FakePlant(knobs(), lambda at: float(counts[int(at)]), prompt=1000, replicas=5)
    plant.run(1200)

    later = changes(plant.run(2400))

    turned = sum((a[2] - a[1]) * (b[2] - b[1]) < 0 for a, b in pairwise(later))
    assert turned <= 1


@settings(max_examples=3, deadline=None, derandomize=True)
@given(
    rate=st.floats(0.05, 5.0),
    prompt=st.integers(50, 3000),
    output=st.integers(10, 300),
    speed=st.floats(0.5, 2.0),
)
def test_a_constant_load_of_any_kind_on_any_hardware_settles(
    rate: float, prompt: int, output: int, speed: float
) -> None:
    step = StepTime(A100.base_s / speed, 0.00012 / speed, 1.2e-7 / speed, 5e-5 / speed)
    plant = FakePlant(
        knobs(max_replicas=40), lambda _: rate, prompt=prompt, output=output, step=step, replicas=2
    )
    plant.run(900)

    later = plant.run(1200)

    assert ups(later) <= 1
    assert later[-1].queued <= later[0].queued + 8


def test_a_burst_at_zero_is_answered_in_one_step_and_nobody_is_asked_twice() -> None:
    plant = FakePlant(knobs(), lambda _: 0.0, prompt=200)
    plant.run(30)
    plant.burst(24)

    ticks = plant.run(120)

    assert changes(ticks[:61]) == []
    assert {tick.target for tick in ticks[:90]} == {3}
    assert ticks[70].queued == 0


def test_load_that_grows_is_followed_and_load_that_ends_is_let_go_of() -> None:
    plant = FakePlant(
        knobs(), lambda t: min(t / 60.0, 8.0) if t < 1800 else 0.0, replicas=1, cold_start_s=30.0
    )

    plant.run(1800)
    at_peak = plant.ticks[-1].target
    assert 3 <= at_peak <= 12
    assert missing(plant.ticks[600:]) < 0.1

    after = plant.run(400)
    assert [tick.target for tick in after][-1] == 0
    # Down to zero in one step: the forecast keeps what the last minutes needed until the idle time is over.
    assert ups(after) == 0


def falls_after(start_s: float, **changed: Any) -> float:
    """Seconds from the end of a load for six replicas until the first of them is given up."""
    rate = lambda t: 8.0 if t < 900 else 1.0  # noqa: E731
    plant = FakePlant(knobs(**changed), rate, replicas=6, cold_start_s=start_s)
    plant.burst(1)
    plant.run(900)
    before = plant.ticks[-1].target
    return next(tick.at for tick in plant.run(600) if tick.target < before) - 900


def test_replicas_that_start_fast_are_given_up_soon_unless_the_operator_says_how_long_to_wait() -> None:
    slow, fast = falls_after(75.0, forecast=False), falls_after(3.0, forecast=False)
    assert fast < 40 < slow
    assert falls_after(3.0, forecast=False, downscale_delay_s=60.0) > fast + 40


def zero_at(ticks: list[Tick]) -> float:
    return next(tick.at for tick in ticks if tick.target == 0)


@settings(max_examples=4, deadline=None, derandomize=True)
@given(
    rate=st.floats(0.1, 6.0),
    down_s=st.sampled_from([0.0, 30.0, 90.0]),
    zero_s=st.sampled_from([0.0, 20.0, 120.0, 300.0]),
    resets=st.lists(st.integers(301, 900), max_size=3),
)
def test_when_load_ends_zero_is_reached_within_the_delays_whatever_is_forgotten_when(
    rate: float, down_s: float, zero_s: float, resets: list[int]
) -> None:
    changed = knobs(downscale_delay_s=down_s, downscale_to_zero_delay_s=zero_s)
    plant = FakePlant(changed, lambda t: rate if t < 300 else 0.0, replicas=1, cold_start_s=20.0)

    def forget(fleet: FakePlant) -> None:
        if fleet.now in resets:
            fleet.state = PolicyState()

    plant.run(300, forget)
    ticks = plant.run(1300, forget)

    busy = [
        tick.at for tick in ticks if tick.decision.explanation.signals["running_requests"] > 0 or tick.queued
    ]
    drained = max(busy, default=300.0)
    begins = max([drained, 300.0, *(float(moment) for moment in resets)])
    assert zero_at(ticks) <= begins + max(down_s, zero_s) + 25.0  # a start under way, and its first report
    assert ticks[-1].target == 0


def test_a_reset_at_any_moment_of_a_steady_load_costs_no_request_its_place() -> None:
    def fleet(resets: range) -> list[Tick]:
        def forget(plant: FakePlant) -> None:
            if int(plant.now) in resets:
                plant.state = PolicyState()

        plant = FakePlant(knobs(), lambda _: 6.0, replicas=4)
        return plant.run(1500, forget)

    undisturbed = fleet(range(0))[900:]
    disturbed = fleet(range(600, 1500, 130))[900:]

    assert max(tick.queued for tick in disturbed) <= max(tick.queued for tick in undisturbed) + 8
    assert min(tick.target for tick in disturbed) >= min(tick.target for tick in undisturbed) - 1
    assert max(tick.target for tick in disturbed) <= max(tick.target for tick in undisturbed) + 2


def test_a_memory_written_and_read_again_every_ten_seconds_changes_nothing() -> None:
    def run(each: Any = None) -> list[tuple[int, int]]:
        plant = FakePlant(knobs(), lambda t: 4.0 if t < 400 else 0.3, cold_start_s=20.0)
        return [(tick.target, tick.wanted) for tick in plant.run(900, each)]

    def through_json(plant: FakePlant) -> None:
        if plant.now % 10 == 0:
            plant.state = restore(json.loads(json.dumps(plant.state.document())))

    assert run(through_json) == run()


@pytest.mark.parametrize("replicas", [1, 3])
def test_an_infeasible_ttft_target_gets_one_replica_more_than_a_loose_one_at_most(replicas: int) -> None:
    # 8,000 tokens are 0.4 s of prefill.
    def targets(ttft_s: float) -> list[int]:
        plant = FakePlant(knobs(ttft_target_s=ttft_s), lambda _: 1.5, prompt=8000, replicas=replicas)
        return [tick.target for tick in plant.run(900)]

    infeasible, loose = targets(0.2), targets(20.0)

    assert max(infeasible) <= max(loose) + 1
    assert infeasible[-1] <= loose[-1] + 1
    assert infeasible[-1] <= 3


@pytest.mark.parametrize(("step", "replicas"), [(TWICE_AS_FAST, 1), (A100, 2), (HALF_AS_FAST, 4)])
def test_hardware_the_prior_is_wrong_about_gets_what_it_needs(step: StepTime, replicas: int) -> None:
    plant = FakePlant(knobs(itl_target_s=0.05), lambda _: 4.0, prompt=500, step=step, replicas=2)
    plant.run(900)

    later = plant.run(600)

    assert missing(later) < 0.05
    assert later[-1].target <= replicas
