"""Replays of a model on pools of nodes that come and go."""

from collections.abc import Sequence

import numpy as np
import pytest

from replay.defaults import KNOBS
from replay.profile import load_profile
from replay.shared_fleet import conditions_of
from replay.simulation import simulate
from replay.variants import Mixed, Pool, PooledFleet, SkyServe, least_usd
from tests.replay.traffic import steady

ON_DEMAND = Pool("on-demand", 3.7)


def spot(*available: int, interval_s: float = 300.0) -> Pool:
    return Pool("spot", 1.2, available, interval_s)


def replay(policy: Mixed, pools: Sequence[Pool], seconds: float = 900.0) -> tuple[PooledFleet, float]:
    profile = load_profile("a100-80gb")
    conditions = conditions_of(KNOBS, profile, 0)
    fleet = PooledFleet(profile, conditions, pools)
    result = simulate(steady(4.0, seconds), policy, profile, conditions, fleet=fleet)
    assert result.unanswered == 0
    return fleet, result.ttft_ok


def test_spot_nodes_cost_less_than_on_demand_nodes() -> None:
    dear, _ = replay(Mixed(KNOBS), [ON_DEMAND])
    cheap, _ = replay(Mixed(KNOBS), [ON_DEMAND, spot(16)])

    assert cheap.usd < 0.75 * dear.usd
    assert cheap.taken == 0


def test_work_goes_on_when_all_spot_nodes_are_taken_away() -> None:
    fleet, in_time = replay(Mixed(KNOBS), [ON_DEMAND, spot(16, 0, 16)])

    assert fleet.taken > 0
    assert in_time > 0.6


def test_skyserve_keeps_one_spot_replica_more_than_needed() -> None:
    fleet, _ = replay(SkyServe(KNOBS), [ON_DEMAND, spot(16)])

    assert fleet.peak >= 2


def test_the_bound_uses_the_cheapest_available_nodes() -> None:
    needs = [(0.0, 2), (300.0, 2), (600.0, 0)]

    assert least_usd(needs, [ON_DEMAND, spot(2, 1)]) == pytest.approx((2 * 1.2 + 1.2 + 3.7) / 12)
    assert np.isinf(ON_DEMAND.nodes(0.0))
