"""Models with variants share a fleet with other models."""

from dataclasses import replace
from math import ceil

from hypothesis import given, settings
from hypothesis import strategies as st

from serve_app.policy.fleet_members import Member
from serve_app.policy.fleet_share import SharingState, share
from tests.policy.sharing import END, GPU, LONGEST_S, busy, member, node, several, traffic, waits
from tests.policy.simulated_fleet import TICK_S, Model, SimulatedFleet


def variants(*targets: int) -> list[Member]:
    """The idle model `v` with one replica of each variant on one node, and their targets."""
    return [
        replace(member(f"v@{n}", 100.0, idle_s=40.0), name="v", wanted=wanted, has_sibling=True)
        for n, wanted in enumerate(targets)
    ]


MORE = busy("b", 100.0, node="n1", wanted=2, claim=2, waiting=9.0, capacity_rps=0.4)
"""A model that has one replica and wants another."""


def test_one_plan_leaves_a_replica_of_a_model() -> None:
    large = replace(MORE, need={"GPU": 2.0})

    grants, state = share([large, *variants(1, 1)], [node(0, 2.0), node(0, 2.0, "n1")], SharingState(), 0.0)

    assert [grants[name].target for name in ("v@0", "v@1")] == [1, 1]
    assert not state.handovers


def test_one_replica_of_two_variants_may_go() -> None:
    nodes = [node(0, 2.0), node(0, 1.0, "n1")]

    grants, _ = share([MORE, *variants(1, 1)], nodes, SharingState(), 0.0)

    assert sorted(grants[name].target for name in ("v@0", "v@1")) == [0, 1]


def test_the_reason_names_the_variant_that_gives() -> None:
    """The model needs one of its two replicas, and none of this variant."""
    used, spare = (replace(each, idle_s=0.0) for each in variants(1, 1))
    nodes = [node(0, 2.0), node(0, 1.0, "n1")]

    grants, _ = share([MORE, replace(used, claim=1, running=1.0), spare], nodes, SharingState(), 0.0)

    assert grants["v@1"].why == "b waits; v needs 0 of 1 replicas of 1 and gives its place."


def test_a_replica_that_ends_is_not_the_last_of_its_model() -> None:
    ending, lasting = variants(0, 1)
    nodes = [node(0, 2.0), node(0, 1.0, "n1")]

    grants, _ = share([MORE, replace(ending, silent=True), lasting], nodes, SharingState(), 0.0)

    assert grants["v@1"].target == 1


def test_a_model_without_replicas_takes_the_last_ones_of_another() -> None:
    grants, _ = share([waits("b", need={"GPU": 2.0}), *variants(1, 1)], [node(0, 2.0)], SharingState(), 0.0)

    assert [grants[name].target for name in ("v@0", "v@1")] == [0, 0]


@st.composite
def mixed_fleets(draw: st.DrawFn) -> SimulatedFleet:
    """Models on two kinds of nodes or one. The first may keep replicas: there is one more place of each."""
    models = []
    for number in range(draw(st.integers(2, 4))):
        kept = draw(st.tuples(st.integers(0, 1), st.integers(0, 1))) if not number else (0, 0)
        model = Model(f"v{number}", minimum=kept[0], on_demand=kept[1], arrivals=draw(traffic(END)))
        models += model.in_kinds((GPU, 1.0, draw(st.booleans())), ({"L": 1.0}, 2.0, False))
    for number in range(draw(st.integers(0, 3))):
        need = {draw(st.sampled_from(["GPU", "L"])): 1.0}
        models.append(Model(f"m{number}", need=need, arrivals=draw(traffic(END))))
    nodes = [{"GPU": draw(st.integers(2, 3)) * 1.0}, {"L": draw(st.integers(2, 3)) * 1.0}]
    return SimulatedFleet(models, nodes, draw(st.integers(0, 99)))


@settings(several, max_examples=5)  # each takes 2 s
@given(mixed_fleets())
def test_models_with_variants_wait_for_their_turns_at_most(fleet: SimulatedFleet) -> None:
    fleet.run(END)
    places = min(fleet.nodes["n0"]["GPU"], fleet.nodes["n1"]["L"]) - 1
    turn = max(model.turn for model in fleet.models)
    one_turn = turn + LONGEST_S + max(model.start_s for model in fleet.models) + 4 * TICK_S
    others = len({model.name for model in fleet.models}) - 1
    for model in fleet.models:
        # After 15 s without a place of one kind, the mix tries the other kind.
        assert model.longest_wait_s <= ceil(others / places) * one_turn + 2 * 15.0
    assert not fleet.broken
