"""Models share a fleet: the situations of the documentation."""

from dataclasses import replace

from serve_app.policy.coming_nodes import NodeTimes
from serve_app.policy.fleet_members import Replica
from serve_app.policy.fleet_share import SharingState, share
from serve_app.wire.resources import ComingNode, Node
from tests.policy.sharing import busy, member, node, waits

# An idle model.


def test_idle_replica_gives_way_at_once() -> None:
    grants, state = share([waits("b"), member("a", 100.0, idle_s=40.0)], [node(0)], SharingState(), 0.0)

    assert grants["a"].target == 0
    assert grants["a"].stop == ("a-0",)
    assert grants["a"].gives_to == "b"
    assert grants["b"].target == 1
    assert (grants["b"].place, grants["b"].eta_s) == (1, 15.0)  # the end of a's replica, and a start
    assert grants["a"].why == "b waits; a has been idle for 40 s and gives its place."
    assert len(state.handovers) == 1


def test_replica_that_has_just_answered_is_kept_for_half_a_start() -> None:
    for idle_s, target in ((4.0, 1), (5.0, 0)):
        a = member("a", 60.0, claim=1, idle_s=idle_s, rps=0.1)
        grants, _ = share([waits("b"), a], [node(0)], SharingState(), 0.0)
        assert grants["a"].target == target


def test_minimum_is_never_taken() -> None:
    grants, _ = share(
        [waits("b"), member("a", 100.0, idle_s=900.0, minimum=1)], [node(0)], SharingState(), 0.0
    )

    assert grants["a"].target == 1
    assert grants["b"].eta_s is None


def test_background_requests_take_nothing() -> None:
    asks = member("b", wanted=1, claim=0)
    grants, _ = share([asks, member("a", 100.0, idle_s=900.0)], [node(0)], SharingState(), 0.0)

    assert grants["a"].target == 1
    assert grants["b"].place == 0


def test_model_with_the_fewest_requests_gives_first() -> None:
    members = [
        waits("c"),
        member("a", 100.0, idle_s=40.0, rps=0.2),
        member("b", 100.0, idle_s=30.0),
    ]
    grants, _ = share(members, [node(0, 2.0)], SharingState(), 0.0)

    assert (grants["a"].target, grants["b"].target) == (1, 0)


def test_handover_drains_nothing_twice() -> None:
    a, c = member("a", 100.0, idle_s=40.0), member("c", 100.0, idle_s=40.0)
    first, state = share([waits("b"), a, c], [node(0, 2.0)], SharingState(), 0.0)
    a, c = replace(a, target=first["a"].target), replace(c, target=first["c"].target)
    for now in (0.5, 5.0, 14.0):  # the replica is still listed
        grants, state = share([waits("b"), a, c], [node(0, 2.0)], state, now)
        assert grants["a"].target + grants["c"].target == 1


def test_freed_place_is_for_the_taker_alone() -> None:
    a = member("a", 100.0, idle_s=40.0)
    _, state = share([waits("b"), a], [node(0)], SharingState(), 0.0)

    grants, _ = share([waits("b"), member("a", wanted=0), waits("c")], [node(1)], state, 1.0)

    assert grants["b"].target == 1
    assert grants["c"].target == 0


# Busy models.


def test_replica_moves_to_where_it_serves_more() -> None:
    a = busy("a", 100.0, 100.0, rps=1.1, running=0.0)
    gets, keeps = waits("b", rps=0.8), waits("b", rps=0.1)
    assert share([gets, a], [node(0, 2.0)], SharingState(), 0.0)[0]["a"].target == 1
    assert share([keeps, a], [node(0, 2.0)], SharingState(), 0.0)[0]["a"].target == 1  # its turn is over
    young = busy("a", 50.0, 50.0, rps=1.9, running=0.0)
    assert share([keeps, young], [node(0, 2.0)], SharingState(), 0.0)[0]["a"].target == 2


def test_share_weight_counts_a_models_requests() -> None:
    a = busy("a", 50.0, rps=0.5, running=0.0)
    for weight, target in ((1.0, 1), (2.0, 0)):
        b = waits("b", rps=0.5, weight=weight)
        assert share([b, a], [node(0)], SharingState(), 0.0)[0]["a"].target == target


def test_busy_replica_is_kept_for_four_starts() -> None:
    for age, target in ((39.0, 1), (41.0, 0)):
        grants, _ = share([waits("b", rps=0.9), busy("a", age)], [node(0)], SharingState(), 0.0)
        assert grants["a"].target == target


def test_turn_ends_for_models_without_a_replica() -> None:
    for age, target in ((90.0, 1), (101.0, 0)):
        grants, _ = share([waits("b"), busy("a", age)], [node(0)], SharingState(), 0.0)
        assert grants["a"].target == target


def test_waiting_models_know_their_place_and_eta() -> None:
    members = [waits("b"), waits("c"), waits("d"), busy("a", 40.0)]
    state = SharingState(waiting_since={"b": 2.0, "c": 1.0, "d": 3.0})

    grants, _ = share(members, [node(0)], state, 10.0)

    assert [grants[name].place for name in "cbd"] == [1, 2, 3]
    etas = [grants[name].eta_s for name in "cbd"]
    assert etas == [75.0, 190.0, 305.0]  # the rest of a's turn, the drain and a start; then turns of 100 s


def test_line_survives_a_restart_of_the_controller() -> None:
    members = [waits("b", held_s=5.0), waits("c", held_s=40.0), busy("a", 40.0)]

    grants, _ = share(members, [node(0)], SharingState(), 100.0)

    assert [grants[name].place for name in "cb"] == [1, 2]


def test_model_that_gave_its_place_joins_the_end_of_the_line() -> None:
    members = [waits("a", held_s=90.0), waits("c"), busy("b", 40.0)]

    grants, _ = share(members, [node(0)], SharingState(waiting_since={"c": 50.0}), 100.0)

    assert [grants[name].place for name in "ca"] == [1, 2]


def test_place_after_a_long_drain_is_taken_once() -> None:
    a, b, c = busy("a", 101.0, rps=0.1), waits("b"), busy("c", 101.0)
    grants, state = share([a, b, c], [node(0, 2.0)], SharingState(waiting_since={"b": 0.0}), 0.0)
    assert (grants["a"].target, grants["c"].target) == (0, 1)

    a = member("a", wanted=0, draining=(Replica("a-0", "n0"),))
    for now in range(1, 21):
        _, state = share([a, b, c], [node(0, 2.0)], state, now)
    a = member("a", wanted=0)  # the new replica has the place, and has not said so
    for now in range(21, 34):
        grants, state = share([a, b, c], [node(0, 2.0)], state, now)
        assert grants["c"].target == 1


def test_eta_of_a_late_hand_over_grows() -> None:
    a, b = busy("a", 101.0), waits("b")
    _, state = share([a, b], [node(0)], SharingState(waiting_since={"b": 0.0}), 0.0)
    a = member("a", wanted=0, draining=(Replica("a-0", "n0"),))

    etas = []
    for now in (2.0, 10.0, 14.0, 25.0):
        grants, state = share([a, b], [node(0)], state, now)
        etas.append(grants["b"].eta_s)

    assert etas == [13.0, 15.0, 19.0, 30.0]  # the drain was expected to take 5 s


def test_no_eta_promises_the_place_of_a_silent_replica() -> None:
    grants, _ = share([waits("b"), busy("a", 40.0, silent=True)], [node(0)], SharingState(), 0.0)

    assert (grants["b"].place, grants["b"].eta_s) == (1, None)


def test_idle_replica_gives_way_though_another_drains() -> None:
    a, c = busy("a", 30.0, draining=(Replica("a-1", "n0"),)), member("c", 300.0, idle_s=200.0)
    grants, _ = share([waits("b"), a, c], [node(0, 3.0)], SharingState(), 0.0)

    assert (grants["c"].target, grants["b"].eta_s) == (0, 15.0)


def test_replica_in_use_stays_while_another_drains() -> None:
    a, c = busy("a", 101.0, draining=(Replica("a-1", "n0"),)), busy("c", 101.0)
    grants, _ = share([waits("b"), waits("d"), a, c], [node(0, 3.0)], SharingState(), 0.0)

    assert (grants["a"].target, grants["c"].target) in ((1, 0), (0, 1))  # for d
    assert (grants["b"].place, grants["b"].eta_s) == (1, 15.0)


def test_next_place_is_for_the_first_in_line() -> None:
    a = busy("a", 30.0, draining=(Replica("a-1", "n0"),))
    state = SharingState(waiting_since={"c": 1.0, "b": 2.0})

    grants, _ = share([waits("b"), waits("c"), a], [node(0, 2.0)], state, 3.0)

    assert (grants["c"].target, grants["b"].target) == (1, 0)


# Replicas of several sizes.


def test_no_small_replica_takes_the_room_that_a_large_one_waits_for() -> None:
    large, state = waits("large", need={"GPU": 3.0}), SharingState(waiting_since={"large": 0.0})
    busy_ones = [busy("a", 40.0), busy("b", 50.0)]

    grants, _ = share([large, waits("small"), *busy_ones], [node(1, 3.0)], state, 1.0)

    assert (grants["large"].target, grants["large"].place) == (1, 1)
    assert (grants["small"].target, grants["small"].place) == (0, 2)


def test_large_replica_that_never_fits_holds_nobody_up() -> None:
    large, state = waits("large", need={"GPU": 3.0}), SharingState(waiting_since={"large": 0.0})
    kept = [busy("a", 40.0, minimum=1), busy("b", 50.0)]

    grants, _ = share([large, waits("small"), *kept], [node(1, 3.0)], state, 1.0)

    assert grants["small"].target == 1


def test_places_of_a_large_replica_are_on_one_node() -> None:
    small = [member(f"s{n}", 100.0, node=f"n{n % 2}", idle_s=60.0 + n) for n in range(6)]
    large = waits("large", need={"GPU": 4.0})
    nodes = [node(0, 3.0, "n0"), node(1, 4.0, "n1")]

    grants, state = share([large, *small], nodes, SharingState(), 0.0)

    assert state.handovers[0].node == "n1"
    assert [grants[f"s{n}"].target for n in range(6)] == [1, 0, 1, 0, 1, 0]


def test_nothing_drains_if_the_large_replica_would_not_fit() -> None:
    small = [member(f"s{n}", 100.0, idle_s=60.0, minimum=int(n == 0)) for n in range(4)]

    grants, state = share([waits("large", need={"GPU": 4.0}), *small], [node(0, 4.0)], SharingState(), 0.0)

    assert not state.handovers
    assert grants["large"].target == 1
    assert grants["large"].eta_s is None


def test_small_replica_leaves_the_room_of_a_large_one() -> None:
    idle = [member(f"s{n}", 100.0, idle_s=60.0) for n in range(3)]
    large = waits("large", need={"GPU": 4.0})
    _, state = share([large, *idle], [node(1, 4.0)], SharingState(), 0.0)

    grants, _ = share([large, *idle, waits("small")], [node(1, 4.0)], state, 0.5)

    assert grants["small"].target == 0


def test_no_more_replicas_go_than_the_large_one_needs() -> None:
    half = member("half", 100.0, idle_s=90.0, need={"GPU": 0.5})
    whole = member("whole", 100.0, idle_s=60.0)

    grants, _ = share([waits("b"), half, whole], [node(0.0, 1.5)], SharingState(), 0.0)

    assert (grants["half"].target, grants["whole"].target) == (1, 0)


# Nodes that come.


def coming(since: float, gpus: float = 1.0, name: str = "pod") -> ComingNode:
    return ComingNode(name, {"GPU": gpus, "CPU": 8.0}, since)


def times(node_s: float) -> SharingState:
    return SharingState(nodes=NodeTimes(node_s))


def test_model_waits_for_a_node_that_comes_before_the_turn() -> None:
    members = [waits("b"), busy("a", 40.0)]

    grants, _ = share(members, [node(0)], times(30.0), 10.0, [coming(0.0)])

    assert (grants["b"].target, grants["b"].eta_s) == (1, 30.0)
    assert "b waits for a new node" in grants["b"].why


def test_idle_replica_goes_if_the_node_takes_longer() -> None:
    members = [waits("b"), member("a", 100.0, idle_s=40.0)]
    for node_s, target in ((30.0, 0), (14.0, 1)):
        grants, _ = share(members, [node(0)], times(node_s), 10.0, [coming(0.0)])
        assert grants["a"].target == target


def test_replica_in_use_stays_while_a_node_comes_within_two_starts() -> None:
    members = [waits("b", rps=1.0), busy("a", 101.0, rps=0.1)]
    for node_s, target in ((34.0, 1), (36.0, 0)):  # a start takes 10 s, the end of a replica 5 s
        grants, _ = share(members, [node(0)], times(node_s), 10.0, [coming(0.0)])
        assert grants["a"].target == target


def test_late_node_stops_counting() -> None:
    members = [waits("b"), busy("a", 101.0)]

    grants, _ = share(members, [node(0)], times(30.0), 60.0, [coming(0.0)])

    assert grants["a"].target == 0


def test_node_that_comes_has_room_for_one_model() -> None:
    members = [waits("b"), waits("c"), busy("a", 40.0)]

    grants, _ = share(members, [node(0)], times(30.0), 10.0, [coming(0.0)])

    assert [grants[name].eta_s for name in "bc"] == [30.0, 75.0]


def test_replica_waits_for_no_node_that_is_too_small() -> None:
    members = [waits("b", need={"GPU": 4.0, "accelerator_type:A100": 0.001})]
    for gpus, eta_s in ((1.0, None), (4.0, 30.0)):
        grants, _ = share(members, [node(0)], times(30.0), 10.0, [coming(0.0, gpus)])
        assert grants["b"].eta_s == eta_s


def test_time_of_a_node_is_learned_when_it_joins() -> None:
    times = NodeTimes(120.0).see([node(0)], [coming(0.0)], 10.0)
    times = times.see([node(0)], [], 30.0)  # its pod runs
    assert times.coming
    times = times.see([node(0), Node({"GPU": 1.0, "CPU": 8.0}, {}, "n1")], [], 38.0)

    assert times.node_s == 79.0
    assert not times.coming


def test_node_that_has_joined_no_longer_comes_while_listed() -> None:
    times = NodeTimes(120.0).see([node(0)], [coming(0.0)], 10.0)
    joined = [node(0), Node({"GPU": 1.0, "CPU": 8.0}, {}, "n1")]
    for now in (40.0, 41.0):
        times = times.see(joined, [coming(0.0)], now)

    assert times.node_s == 80.0
    assert not times.coming


def test_deleted_pod_stops_counting() -> None:
    times = NodeTimes().see([node(0)], [coming(0.0)], 10.0).see([node(0)], [], 41.0)

    assert not times.coming
