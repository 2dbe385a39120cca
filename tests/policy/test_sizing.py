from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.policy.capacity_model import Mix, StepTime, capacity_rps
from serve_app.policy.sizing import MOST_REPLICAS, Sizing, round_up, size
from serve_app.policy.state import PolicyState
from serve_app.settings.knobs import Knobs

A100 = StepTime(0.0115, 0.00012, 1.2e-7, 5e-5)
MIX = Mix(1000, 1.0, 128)


def sizing(headroom: float = 0.0, itl_rps: float = 3.0, **knobs: float) -> Sizing:
    """A sizing in which each replica serves three requests per second, however many there are."""
    return Sizing(A100, MIX, Knobs(headroom=headroom, **knobs), itl_rps)


def pooled(headroom: float = 0.0) -> Sizing:
    """A sizing limited by time to first token, in which each replica of a larger fleet serves more."""
    return sizing(headroom, itl_rps=9.0)


@pytest.mark.parametrize(
    ("rps", "headroom", "replicas"),
    [(0, 1, 0), (0.01, 0, 1), (3, 0, 1), (3.1, 0, 2), (12, 0, 4), (12, 1, 6), (12, 0.5, 5), (300, 1, 110)],
)
def test_replicas_for_a_rate_are_its_load_and_a_share_of_its_root(
    rps: float, headroom: float, replicas: int
) -> None:
    # 12 a second are 4 replicas of load; sqrt(4) = 2 more with headroom 1.
    assert sizing(headroom).replicas(rps) == replicas


def test_a_correction_is_of_what_each_carries() -> None:
    halved = replace(sizing(), correction=0.5)

    assert (halved.rps(1), halved.model_rps(1)) == (1.5, 3.0)
    assert (halved.replicas(12), halved.replicas(12, corrected=False)) == (8, 4)


def test_what_one_of_more_replicas_carries_is_the_capacity_of_such_a_fleet() -> None:
    knobs = Knobs()
    state = PolicyState(kv_cache_tokens=200_000.0, late_tokens=1000.0, correction=0.9)

    learned = size(state, knobs, A100, MIX)

    for replicas in (1, 2, 7):
        assert learned.model_rps(replicas) == capacity_rps(A100, MIX, knobs, 200_000.0, 2.0, replicas)
        assert learned.rps(replicas) == pytest.approx(0.9 * learned.model_rps(replicas))
    assert learned.model_rps(1000) == learned.model_rps(64)
    assert learned.model_rps(0) == learned.model_rps(1)


@pytest.mark.parametrize("headroom", [0.0, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("replicas", [1, 2, 7, 40])
def test_the_most_a_fleet_carries_is_the_inverse_of_the_replicas_for_it(
    headroom: float, replicas: int
) -> None:
    for fleet in (sizing(headroom), pooled(headroom)):
        corrected = replace(fleet, correction=0.7)

        most = corrected.most_rps(replicas)

        assert corrected.replicas(most) == replicas
        assert corrected.replicas(most * 1.01) == replicas + 1


def test_a_fleet_that_shares_its_queue_needs_fewer_than_its_load_over_what_one_takes() -> None:
    fleet = pooled()
    alone = fleet.model_rps(1)

    assert fleet.replicas(20 * alone) < 16


@settings(max_examples=60, deadline=None)
@given(st.floats(0.01, 200), st.floats(0, 3), st.floats(0.25, 1))
def test_the_replicas_for_a_rate_are_the_fewest_that_carry_it(
    rps: float, headroom: float, correction: float
) -> None:
    fleet = replace(pooled(headroom), correction=correction)

    count = fleet.replicas(rps)

    assert fleet.most_rps(count) >= rps * (1 - 1e-5)
    assert count == 1 or fleet.most_rps(count - 1) < rps * (1 + 1e-5)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.01, 1e4), st.floats(1, 10), st.floats(0, 3))
def test_more_load_never_needs_fewer(rps: float, more: float, headroom: float) -> None:
    fleet = pooled(headroom)

    assert fleet.replicas(rps * more) >= fleet.replicas(rps)


def test_whole_replicas_are_a_number_within_reason() -> None:
    assert [round_up(value) for value in (-1.0, 0.0, 0.1, 3.0000001, 3.1)] == [0, 0, 1, 3, 4]
    assert round_up(1e300) == sizing().replicas(1e300) == MOST_REPLICAS
