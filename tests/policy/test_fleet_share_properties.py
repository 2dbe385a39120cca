"""Models share a fleet: promises over random fleets and traffic."""

from math import ceil, inf

from hypothesis import given
from hypothesis import strategies as st

from serve_app.wire.resources import ComingNode
from tests.policy.sharing import END, LONGEST_S, several, traffic
from tests.policy.simulated_fleet import TICK_S, Model, SimulatedFleet


@st.composite
def fleets(draw: st.DrawFn, most: int = 4, least: int = 1) -> SimulatedFleet:
    gpus = draw(st.integers(least, most))
    models = [
        Model(
            f"m{n}",
            start_s=draw(st.sampled_from([1.0, 3.0, 10.0])),
            weight=draw(st.sampled_from([0.2, 1.0, 5.0])),
            turn_s=draw(st.sampled_from([None, 20.0, 60.0])),
            arrivals=draw(traffic(END)),
        )
        for n in range(draw(st.integers(2, 6)))
    ]
    return SimulatedFleet(models, [{"GPU": float(gpus)}], draw(st.integers(0, 99)))


@several
@given(fleets())
def test_waits_and_starts_of_models_are_bounded(fleet: SimulatedFleet) -> None:
    fleet.run(END)
    places = fleet.nodes["n0"]["GPU"]
    turn = max(model.turn for model in fleet.models)
    one_turn = turn + LONGEST_S + max(model.start_s for model in fleet.models) + 4 * TICK_S
    for model in fleet.models:
        assert model.longest_wait_s <= ceil((len(fleet.models) - 1) / places) * one_turn
    unfinished = max(model.start_s for model in fleet.models) * places
    assert fleet.starting_s <= 2 / 3 * fleet.held_s + unfinished


@several
@given(fleets())
def test_starts_take_a_fifth_of_the_time_of_replicas_in_use(fleet: SimulatedFleet) -> None:
    fleet.run(END)
    for start_s, life_s in fleet.taken_in_use:
        assert start_s <= life_s / 5


@several
@given(fleets(most=2), st.lists(st.tuples(st.floats(0, END), st.floats(1, 400) | st.just(inf)), max_size=3))
def test_nodes_that_come_or_never_join_lengthen_no_wait_by_much(
    fleet: SimulatedFleet, nodes: list[tuple[float, float]]
) -> None:
    fleet.coming = [
        (ComingNode(f"pod{n}", {"GPU": 1.0}, at), at + takes) for n, (at, takes) in enumerate(nodes)
    ]
    places = fleet.nodes["n0"]["GPU"]
    fleet.run(END)
    start = max(model.start_s for model in fleet.models)
    one_turn = max(model.turn for model in fleet.models) + LONGEST_S + start + 4 * TICK_S
    for model in fleet.models:
        assert model.longest_wait_s <= ceil((len(fleet.models) - 1) / places) * (one_turn + 2 * start)


@several
@given(fleets(), st.integers(0, 2))
def test_minimum_is_kept_under_any_traffic(fleet: SimulatedFleet, minimum: int) -> None:
    fleet.models[0].minimum = min(minimum, int(fleet.nodes["n0"]["GPU"]))
    fleet.run(END)
    assert fleet.fewest_of_minimum.get("m0", inf) >= fleet.models[0].minimum


@several
@given(fleets(24, 24))
def test_with_room_for_all_every_own_decision_stands(fleet: SimulatedFleet) -> None:
    fleet.run(END)
    assert fleet.identical


@several
@given(fleets())
def test_each_place_has_at_most_one_drain(fleet: SimulatedFleet) -> None:
    """A drain makes room for a start, except when a model ends its own replica: here none does."""
    for model in fleet.models:
        model.most = 1
    fleet.run(END - 110)  # no model is idle for `AWAKE_S`
    assert fleet.drains <= fleet.starts


@several
@given(fleets(), st.data())
def test_large_replica_gets_its_node_in_turn(fleet: SimulatedFleet, data: st.DataObject) -> None:
    fleet.nodes = {"n0": {"GPU": 4.0}, "n1": {"GPU": 2.0}}
    large = fleet.models[0]
    large.need = {"GPU": data.draw(st.sampled_from([2.0, 4.0]))}
    large.arrivals = [(float(at), 2.0) for at in range(50, 400, 5)]
    fleet.run(END)
    turn = max(model.turn for model in fleet.models)
    assert large.longest_wait_s <= 2 * (turn + LONGEST_S) + max(m.start_s for m in fleet.models) + 4 * TICK_S
