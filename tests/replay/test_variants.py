"""Replays of a model on pools of nodes that come and go."""

from collections.abc import Sequence

import numpy as np
import pytest

from replay.defaults import KNOBS
from replay.pools import Pool, PooledFleet, least_usd
from replay.profile import load_profile
from replay.scenario import scenario
from replay.variants import Mixed, SkyServe
from serve_app.settings.knobs import Knobs
from tests.replay.traffic import steady

ON_DEMAND = Pool("on-demand", 3.7)


def spot(*available: int, interval_s: float = 300.0) -> Pool:
    return Pool("spot", 1.2, available, interval_s)


def replay(
    policy: Mixed,
    pools: Sequence[Pool],
    seconds: float = 900.0,
    warm: int = 0,
    knobs: Knobs = KNOBS,
    rate: float = 4.0,
) -> tuple[PooledFleet, float]:
    profile = load_profile("a100-80gb")
    world = scenario(steady(rate, seconds), knobs=knobs, profile=profile)
    fleet = PooledFleet(profile, world.conditions, pools)
    result = world.run(policy, warm=warm, fleet=fleet)
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


def test_replicas_serve_until_their_announced_end() -> None:
    pools = [ON_DEMAND, spot(16, 0, 0)]
    fleet, in_time = replay(Mixed(KNOBS), pools, warm=2)

    assert fleet.taken > 0
    assert in_time > 0.99


@pytest.mark.parametrize(("notice_s", "moved"), [(0.0, True), (120.0, False)])
def test_streams_move_at_once_from_a_node_without_notice(notice_s: float, moved: bool) -> None:
    knobs = KNOBS.model_copy(update={"min_replicas": 3})
    pools = [ON_DEMAND, Pool("spot", 1.2, (3, 1), 100.0, notice_s)]
    fleet, _ = replay(Mixed(knobs), pools, 200.0, warm=3, knobs=knobs, rate=12.0)

    assert fleet.taken == 2
    assert (fleet.memory.totals["moves"] > 0) == moved


def test_a_fleet_begins_warm_on_the_cheapest_nodes() -> None:
    world = scenario(steady(4.0, 60.0))
    fleet = PooledFleet(world.profile, world.conditions, [ON_DEMAND, spot(2)])
    fleet.warm(3)

    assert fleet.targets == {"on-demand": 1, "spot": 2}


def test_a_policy_knows_the_ends_of_earlier_days() -> None:
    pool = Pool("spot", 1.2, (16,), notice_s=30.0, before=(16, 1, 16, 16))

    state = pool.known(4, 60.0)

    assert [(end.replicas, end.uncovered_s) for end in state.ends] == [(3, 60.0)]


def test_slow_replicas_take_longer_and_learn_their_speed() -> None:
    knobs = KNOBS.model_copy(update={"ttft_target_s": 2.0, "itl_target_s": 0.2})
    policy = Mixed(knobs)
    fleet, _ = replay(policy, [ON_DEMAND, Pool("slow", 0.5, speed=0.25)], 300.0, knobs=knobs)

    fits = policy.state.mix.variants
    assert fits["slow"].fit.steps
    assert fits["slow"].fit.step_time().base_s > 2 * fleet.profile.step.base_s


def test_skyserve_keeps_one_spot_replica_more_than_needed() -> None:
    fleet, _ = replay(SkyServe(KNOBS), [ON_DEMAND, spot(16)])

    assert fleet.peak >= 2


def test_the_bound_uses_the_cheapest_available_nodes() -> None:
    needs = [(0.0, 2), (300.0, 2), (600.0, 0)]

    assert least_usd(needs, [ON_DEMAND, spot(2, 1)]) == pytest.approx((2 * 1.2 + 1.2 + 3.7) / 12)
    assert np.isinf(ON_DEMAND.nodes(0.0))


def test_the_bound_weighs_prices_by_speed() -> None:
    needs = [(0.0, 2), (3600.0, 0)]

    assert least_usd(needs, [ON_DEMAND, Pool("l40s", 1.1, speed=0.5)]) == pytest.approx(4.4)
    assert least_usd(needs, [ON_DEMAND, Pool("l40s", 2.2, speed=0.5)]) == pytest.approx(7.4)
