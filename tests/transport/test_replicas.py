from __future__ import annotations

from serve_app.transport.replicas import Replica, ReplicaSet, replica_set

LIMIT = 1000


def where(*ids: str) -> dict[str, dict[str, str]]:
    return {name: {"address": f"10.0.0.1:{ord(name)}", "token": f"key-{name}"} for name in ids}


def replicas(*ids: str) -> ReplicaSet:
    made = ReplicaSet()
    made.update(where(*ids))
    return made


def picks(among: ReplicaSet, times: int) -> list[str]:
    """Replicas picked one after the other, with nothing left on them."""
    picked = []
    for _ in range(times):
        replica = among.take(LIMIT)
        assert replica is not None
        picked.append(replica.replica_id)
        among.release(replica)
    return picked


def take(among: ReplicaSet, *ids: str) -> list[Replica]:
    """Requests put on replicas, which have to be those of these ids in turn."""
    taken = [among.take(LIMIT) for _ in ids]
    assert [replica and replica.replica_id for replica in taken] == list(ids)
    return [replica for replica in taken if replica is not None]


def test_where_there_is_no_replica_none_is_picked() -> None:
    assert ReplicaSet().take(LIMIT) is None
    assert len(ReplicaSet()) == 0


def test_a_replica_comes_with_its_address_and_its_token() -> None:
    (replica,) = take(replicas("a"), "a")

    assert (replica.address, replica.token) == ("10.0.0.1:97", "key-a")


def test_equals_take_turns() -> None:
    assert picks(replicas("a", "b", "c"), 7) == ["a", "b", "c", "a", "b", "c", "a"]


def test_the_least_loaded_is_picked_out_of_turn() -> None:
    among = replicas("a", "b")

    a, b, another_a = take(among, "a", "b", "a")
    assert picks(among, 2) == ["b", "b"]
    among.release(another_a)
    among.release(a)
    assert picks(among, 2) == ["a", "a"]
    among.release(b)
    assert set(picks(among, 2)) == {"a", "b"}


def test_a_burst_spreads_evenly() -> None:
    among = replicas("a", "b", "c")

    for _ in range(32):
        among.take(LIMIT)

    assert sorted(among.in_flight(name) for name in "abc") == [10, 11, 11]


def test_a_request_counts_from_the_pick_to_the_release() -> None:
    among = replicas("a")

    (a,) = take(among, "a")
    assert among.in_flight("a") == 1
    among.release(a)
    assert among.in_flight("a") == 0


def test_a_replica_takes_no_more_than_it_may() -> None:
    among = replicas("a", "b")

    taken = [among.take(2) for _ in range(4)]
    assert None not in taken
    assert among.take(2) is None
    assert taken[1] is not None
    among.release(taken[1])
    assert among.take(2) is taken[1]


def test_counts_of_replicas_that_stay_survive_an_update() -> None:
    among = replicas("a", "b")
    (a,) = take(among, "a")

    among.update(where("a", "c"))

    assert (among.in_flight("a"), among.in_flight("b"), among.in_flight("c")) == (1, 0, 0)
    assert picks(among, 2) == ["c", "c"]
    among.release(a)
    assert among.in_flight("a") == 0


def test_replicas_that_are_gone_are_picked_no_more() -> None:
    among = replicas("a", "b")

    among.update(where("b"))

    assert len(among) == 1
    assert picks(among, 2) == ["b", "b"]


def test_a_replica_that_could_not_be_reached_comes_after_every_one_that_could() -> None:
    among = replicas("a", "b")
    a, b = take(among, "a", "b")
    among.release(a)

    a.failures = 1
    assert picks(among, 2) == ["b", "b"]
    b.failures = 2
    assert picks(among, 2) == ["a", "a"]
    a.failures = b.failures = 0
    among.release(b)
    assert set(picks(among, 2)) == {"a", "b"}


def test_the_only_replica_is_picked_even_if_it_could_not_be_reached() -> None:
    among = replicas("a")
    (a,) = take(among, "a")

    a.failures = 3

    assert among.take(LIMIT) is a


def test_a_request_may_end_on_a_replica_that_went_meanwhile() -> None:
    among = replicas("a")
    (a,) = take(among, "a")

    among.update({})
    assert among.in_flight("a") == 0
    among.release(a)

    assert a.in_flight == 0


def test_whoever_waits_hears_of_replicas_that_come_and_go_and_of_room_on_them() -> None:
    among = ReplicaSet()
    heard: list[int] = []
    among.notify(lambda: heard.append(sum(among.in_flight(name) for name in "ab")))

    among.update(where("a", "b"))
    a, _ = take(among, "a", "b")
    assert heard == [0]
    among.release(a)
    assert heard == [0, 1]
    among.update({})
    assert heard == [0, 1, 0]


def test_router_and_client_of_a_deployment_share_one_set_and_other_deployments_have_their_own() -> None:
    assert replica_set("Engine-test-replicas") is replica_set("Engine-test-replicas")
    assert replica_set("Engine-test-replicas") is not replica_set("Engine-test-other")
