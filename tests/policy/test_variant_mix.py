"""Which variants serve a model: the cheapest mix, dry variants, spare replicas, and moves that pay."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.policy.variant_mix import Offer, VariantMix, cheapest, choose, cost, covers
from serve_app.policy.variant_state import VariantMixState, VariantState

SPOT = Offer("spot", 1.2, 10.0, preemptible=True)
ON_DEMAND = Offer("on-demand", 3.7, 10.0)
SMALL = Offer("l40s", 1.1, 4.0)
WINDOW_S = 60.0


def ready(offer: Offer, replicas: int) -> Offer:
    return replace(offer, ready=replicas, placed=replicas)


class Fleet:
    """A fleet in which each replica that is asked for becomes ready, unless its variant has no nodes."""

    def __init__(self, *offers: Offer, on_demand: int = 0) -> None:
        self.offers = {offer.name: offer for offer in offers}
        self.state, self.now, self.on_demand = VariantMixState(), 0.0, on_demand
        self.without_nodes: set[str] = set()
        self.mix: VariantMix | None = None

    def step(self, work_rps: float, seconds: float = 1.0) -> dict[str, int]:
        self.now += seconds
        offers = list(self.offers.values())
        self.mix, self.state = choose(offers, work_rps, self.on_demand, WINDOW_S, self.state, self.now)
        targets = dict(self.mix.targets)
        for name, count in targets.items():
            offer = self.offers[name]
            got = min(count, offer.ready) if name in self.without_nodes else count
            self.offers[name] = replace(offer, ready=got, placed=got)
        return targets


def test_the_cheapest_work_is_bought_first() -> None:
    assert cheapest([SPOT, ON_DEMAND], 35.0, 0) == {"spot": 4, "on-demand": 0}


def test_the_last_replica_is_the_cheapest_that_is_enough() -> None:
    assert cheapest([ON_DEMAND, SMALL], 13.0, 0) == {"on-demand": 0, "l40s": 4}
    assert cheapest([replace(ON_DEMAND, usd_per_hour=2.0), SMALL], 13.0, 0) == {"on-demand": 1, "l40s": 1}


def test_bounds_of_a_variant_send_work_to_the_next() -> None:
    assert cheapest([replace(SPOT, most=2), ON_DEMAND], 40.0, 0) == {"spot": 2, "on-demand": 2}
    assert cheapest([SPOT, replace(ON_DEMAND, least=1)], 20.0, 0) == {"spot": 1, "on-demand": 1}


def test_replicas_that_may_end_at_once_are_spare() -> None:
    assert cheapest([replace(SPOT, at_once=2), ON_DEMAND], 40.0, 0) == {"spot": 6, "on-demand": 0}


def test_spare_replicas_are_not_worth_it_for_a_small_model() -> None:
    assert cheapest([replace(SPOT, at_once=3), ON_DEMAND], 10.0, 0) == {"spot": 0, "on-demand": 1}


def test_some_replicas_stay_on_demand_if_asked() -> None:
    assert cheapest([SPOT, ON_DEMAND], 40.0, 1) == {"spot": 3, "on-demand": 1}


def test_a_variant_that_misses_the_targets_serves_nothing() -> None:
    slow = replace(SMALL, usd_per_hour=0.1, meets_targets=False)
    fleet = Fleet(ON_DEMAND, slow)

    assert fleet.step(20.0) == {"on-demand": 2, "l40s": 0}


def test_variants_that_miss_the_targets_serve_if_there_is_no_other() -> None:
    fleet = Fleet(replace(ON_DEMAND, meets_targets=False))

    assert fleet.step(20.0) == {"on-demand": 2}


def test_the_next_variant_replaces_a_dry_one_at_once() -> None:
    fleet = Fleet(SPOT, ON_DEMAND)
    fleet.step(40.0)
    fleet.offers["spot"] = replace(fleet.offers["spot"], ready=1, placed=1, dry=True)

    assert fleet.step(40.0) == {"spot": 1, "on-demand": 3}


def test_dry_variants_are_asked_for_nodes_if_nothing_else_is_left() -> None:
    fleet = Fleet(replace(SPOT, dry=True))
    assert fleet.step(20.0) == {"spot": 2}

    fleet = Fleet(replace(SPOT, dry=True), replace(ON_DEMAND, most=1))
    assert fleet.step(20.0) == {"spot": 1, "on-demand": 1}


def test_a_dry_variant_is_tried_with_one_replica_beside_the_mix() -> None:
    fleet = Fleet(replace(SPOT, tried=True), ON_DEMAND)
    fleet.without_nodes = {"spot"}

    assert fleet.step(40.0) == {"spot": 1, "on-demand": 4}
    fleet.offers["spot"] = replace(fleet.offers["spot"], placed=1)
    assert fleet.step(50.0) == {"spot": 2, "on-demand": 4}, "its node does work, and one more is tried"


def test_a_variant_that_would_not_be_used_is_not_tried() -> None:
    fleet = Fleet(SPOT, replace(ON_DEMAND, tried=True))

    assert fleet.step(40.0) == {"spot": 4, "on-demand": 0}


def test_ending_replicas_stay_until_others_are_ready() -> None:
    fleet = Fleet(SPOT, ON_DEMAND)
    fleet.step(40.0)
    ending = replace(SPOT, ready=4, ending=4, dry=True)
    fleet.offers["spot"] = ending
    fleet.without_nodes = {"spot", "on-demand"}

    assert fleet.step(40.0) == {"spot": 4, "on-demand": 4}
    fleet.offers |= {"spot": ending, "on-demand": replace(ON_DEMAND, ready=3, placed=4)}
    assert fleet.step(40.0) == {"spot": 1, "on-demand": 4}


def test_a_move_stops_no_start_that_replaces_ending_replicas() -> None:
    fleet = Fleet(SPOT, ON_DEMAND)
    fleet.step(40.0)
    fleet.offers["spot"] = replace(fleet.offers["spot"], ready=4, ending=4, placed=0)
    fleet.offers["on-demand"] = replace(ON_DEMAND, placed=4)
    fleet.without_nodes = {"spot", "on-demand"}

    assert fleet.step(40.0)["on-demand"] == 4


def test_the_only_replica_serves_although_it_may_end() -> None:
    fleet = Fleet(replace(SPOT, most=1, at_once=1))

    assert fleet.step(5.0) == {"spot": 1}


def test_a_clock_that_was_ahead_keeps_no_variant_dry() -> None:
    state = VariantState(since=0.0).learn_ends(["r1"], 60.0, 0.0, 1e6)

    assert state.is_dry(1e6 + 1.0)
    assert not state.is_dry(1e6 - 86_400.0)


def test_work_moves_back_when_the_cheap_variant_is_back() -> None:
    fleet = Fleet(replace(SPOT, dry=True), ON_DEMAND)
    assert fleet.step(40.0) == {"spot": 0, "on-demand": 4}
    fleet.offers["spot"] = SPOT
    seen = [fleet.step(40.0) for _ in range(300)]

    assert seen[0] == {"spot": 0, "on-demand": 4}
    assert {"spot": 4, "on-demand": 4} in seen, "the old replicas stay until the new ones are ready"
    assert seen[-1] == {"spot": 4, "on-demand": 0}


def test_old_replicas_stay_while_the_new_ones_have_no_node() -> None:
    fleet = Fleet(replace(SPOT, dry=True), ON_DEMAND)
    fleet.step(40.0)
    fleet.offers["spot"] = SPOT
    fleet.without_nodes = {"spot"}

    assert all(fleet.step(40.0)["on-demand"] == 4 for _ in range(300))


def test_fewer_replicas_wait_for_the_scale_down_window() -> None:
    fleet = Fleet(ON_DEMAND)
    fleet.step(40.0)

    assert [fleet.step(20.0)["on-demand"] for _ in range(61)][::60] == [4, 2]


def test_a_model_without_work_keeps_only_its_least_replicas() -> None:
    fleet = Fleet(SPOT, replace(ON_DEMAND, least=1))
    fleet.step(40.0)

    assert fleet.step(0.0) == {"spot": 0, "on-demand": 1}


def test_the_dearest_fleet_is_named_beside_the_price() -> None:
    fleet = Fleet(SPOT, ON_DEMAND)
    fleet.step(40.0)

    assert fleet.mix is not None
    assert fleet.mix.usd_per_hour == pytest.approx(4.8)
    assert fleet.mix.dearest_usd_per_hour == pytest.approx(14.8)


def price(loads: Sequence[float], *offers: Offer) -> float:
    """The cost of a fleet whose replicas have nodes at once and serve after a start. A load is for 5 s."""
    state, usd = VariantMixState(), 0.0
    began: dict[str, list[float]] = {offer.name: [] for offer in offers}
    for now, load in enumerate(loads):
        seen = []
        for offer in offers:
            placed = began[offer.name]
            ready = sum(5.0 * (now - at) >= offer.start_s for at in placed)
            seen.append(replace(offer, placed=len(placed), ready=ready))
        mix, state = choose(seen, load, 0, WINDOW_S, state, 5.0 * now)
        for name, count in mix.targets.items():
            began[name] = [*began[name], *[now] * count][:count]
        usd += cost(offers, mix.targets) * 5.0 / 3600.0
    return usd


def changing_load(seed: int) -> list[float]:
    """A load that changes for up to two minutes, and stays for up to five."""
    random, load, found = Random(seed), 60.0, list[float]()
    while len(found) < 360:
        then, steps = min(max(load * random.uniform(0.7, 1.4), 5.0), 200.0), random.randint(1, 24)
        found += [load + (then - load) * step / steps for step in range(1, steps + 1)]
        found += [then] * random.randint(6, 60)
        load = then
    return found


@pytest.mark.parametrize(("capacity_rps", "dearer"), [(4.0, 1.3), (6.0, 1.05), (6.0, 1.5), (9.0, 1.05)])
def test_a_variant_with_dearer_work_costs_its_trial_at_most(capacity_rps: float, dearer: float) -> None:
    extra = Offer("extra", SPOT.usd_per_work * dearer * capacity_rps, capacity_rps)
    trial_usd = extra.usd_per_hour * 2 * extra.start_s / 3600.0
    loads = [changing_load(seed) for seed in range(3)]

    without = sum(price(each, SPOT, ON_DEMAND) for each in loads)
    assert sum(price(each, SPOT, ON_DEMAND, extra) for each in loads) <= without + trial_usd


def test_growth_buys_no_dearer_work_to_save_little() -> None:
    fleet = Fleet(SPOT, replace(SMALL, usd_per_hour=1.1))
    fleet.step(20.0)

    assert [fleet.step(rps) for rps in (21.0, 26.0)] == [{"spot": 3, "l40s": 0}] * 2


def test_a_cheap_last_replica_goes_when_its_work_grows() -> None:
    fleet = Fleet(SPOT, replace(SMALL, usd_per_hour=0.6))
    fleet.step(20.0)

    assert fleet.step(21.0) == {"spot": 2, "l40s": 1}
    assert [fleet.step(28.0) for _ in range(2)][-1] == {"spot": 3, "l40s": 0}


OFFERS = st.lists(
    st.builds(
        Offer,
        name=st.sampled_from("abcd"),
        usd_per_hour=st.floats(0.1, 10.0),
        capacity_rps=st.floats(0.5, 20.0),
        most=st.integers(1, 30),
        preemptible=st.booleans(),
        at_once=st.just(0),
        start_s=st.floats(5.0, 300.0),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda offer: offer.name,
)


@settings(max_examples=50, deadline=None)
@given(OFFERS, st.floats(0.1, 200.0))
def test_the_cheapest_mix_does_the_work_or_all_it_can(offers: list[Offer], work_rps: float) -> None:
    found = cheapest(offers, work_rps, 0)
    everything = {offer.name: offer.most for offer in offers}

    assert all(found[offer.name] <= offer.most for offer in offers)
    if covers(offers, everything, work_rps):
        assert covers(offers, found, work_rps)
        for offer in offers:  # no single variant does it for less
            alone = -(-work_rps // offer.capacity_rps)
            if alone <= offer.most:
                assert cost(offers, found) <= alone * offer.usd_per_hour + 1e-6
    else:
        assert found == everything


@settings(max_examples=15, deadline=None)
@given(OFFERS, st.floats(0.5, 60.0), st.data())
def test_moves_cost_no_more_than_staying_would_have(
    offers: list[Offer], work_rps: float, data: st.DataObject
) -> None:
    fleet, changes, before = Fleet(*offers), 0, None
    names = [offer.name for offer in offers]
    for step in range(300):
        if step % 30 == 0:  # a variant may lose its nodes, or get them back, every half minute
            dry = data.draw(st.sets(st.sampled_from(names)))
            for name in names:
                offer = fleet.offers[name]
                fleet.offers[name] = replace(offer, dry=name in dry)
        fleet.step(work_rps * data.draw(st.floats(0.97, 1.0)) if step % 7 == 0 else work_rps)
        assert fleet.mix is not None
        goal = dict(fleet.mix.goal)
        changes += before is not None and goal != before
        before = goal

    # Nodes came back at most ten times. Each return may cause one move, and each loss another one.
    assert changes <= 21


@settings(max_examples=15, deadline=None)
@given(OFFERS, st.floats(0.5, 60.0))
def test_a_constant_load_comes_to_rest(offers: list[Offer], work_rps: float) -> None:
    fleet = Fleet(*offers)
    for _ in range(200):
        fleet.step(work_rps, 10.0)
    rest = [fleet.step(work_rps) for _ in range(20)]

    assert all(each == rest[0] for each in rest)
