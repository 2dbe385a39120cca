from __future__ import annotations

from contextlib import ExitStack, suppress

from serve_app.transport.replicas import ReplicaSet, replica_set


def where(*ids: str) -> dict[str, dict[str, str]]:
    return {name: {"address": f"10.0.0.1:{ord(name)}", "token": f"key-{name}"} for name in ids}


def replicas(*ids: str) -> ReplicaSet:
    made = ReplicaSet()
    made.update(where(*ids))
    return made


def picks(among: ReplicaSet, times: int) -> list[str]:
    """Replicas picked one after the other, with nothing put on them."""
    return [replica.replica_id for _ in range(times) if (replica := among.least_loaded()) is not None]


def test_where_there_is_no_replica_none_is_picked() -> None:
    assert ReplicaSet().least_loaded() is None
    assert len(ReplicaSet()) == 0


def test_a_replica_comes_with_its_address_and_its_token() -> None:
    replica = replicas("a").least_loaded()

    assert replica is not None
    assert (replica.replica_id, replica.address, replica.token) == ("a", "10.0.0.1:97", "key-a")


def test_equals_take_turns() -> None:
    assert picks(replicas("a", "b", "c"), 7) == ["a", "b", "c", "a", "b", "c", "a"]


def test_the_least_loaded_is_picked_out_of_turn() -> None:
    among = replicas("a", "b")
    a = among.least_loaded()
    assert a is not None

    with among.using(a), among.using(a):
        assert picks(among, 2) == ["b", "b"]
        b = among.least_loaded()
        assert b is not None
        with among.using(b), among.using(b), among.using(b):
            assert picks(among, 2) == ["a", "a"]


def test_a_burst_spreads_evenly() -> None:
    among = replicas("a", "b", "c")

    with ExitStack() as burst:
        for _ in range(32):
            replica = among.least_loaded()
            assert replica is not None
            burst.enter_context(among.using(replica))

        assert sorted(among.in_flight(name) for name in "abc") == [10, 11, 11]


def test_a_request_counts_for_the_length_of_its_block_even_when_it_fails() -> None:
    among = replicas("a")
    a = among.least_loaded()
    assert a is not None

    with suppress(ZeroDivisionError), among.using(a):
        assert among.in_flight("a") == 1
        raise ZeroDivisionError

    assert among.in_flight("a") == 0


def test_counts_of_replicas_that_stay_survive_an_update() -> None:
    among = replicas("a", "b")
    a = among.least_loaded()
    assert a is not None

    with among.using(a):
        among.update(where("a", "c"))

        assert (among.in_flight("a"), among.in_flight("b"), among.in_flight("c")) == (1, 0, 0)
        assert picks(among, 2) == ["c", "c"]
    assert among.in_flight("a") == 0


def test_replicas_that_are_gone_are_picked_no_more() -> None:
    among = replicas("a", "b")

    among.update(where("b"))

    assert len(among) == 1
    assert picks(among, 2) == ["b", "b"]


def test_a_replica_that_could_not_be_reached_comes_after_every_one_that_could() -> None:
    among = replicas("a", "b")
    a, b = among.least_loaded(), among.least_loaded()
    assert a is not None
    assert b is not None

    a.failures = 1
    with among.using(b), among.using(b):
        assert picks(among, 2) == ["b", "b"]
    b.failures = 2
    assert picks(among, 2) == ["a", "a"]
    a.failures = b.failures = 0
    assert set(picks(among, 2)) == {"a", "b"}


def test_the_only_replica_is_picked_even_if_it_could_not_be_reached() -> None:
    among = replicas("a")
    a = among.least_loaded()
    assert a is not None

    a.failures = 3

    assert among.least_loaded() is a


def test_a_request_may_end_on_a_replica_that_went_meanwhile() -> None:
    among = replicas("a")
    a = among.least_loaded()
    assert a is not None

    with among.using(a):
        among.update({})
        assert among.in_flight("a") == 0

    assert a.in_flight == 0


def test_router_and_relay_of_a_deployment_share_one_set_and_other_deployments_have_their_own() -> None:
    assert replica_set("Engine-test-replicas") is replica_set("Engine-test-replicas")
    assert replica_set("Engine-test-replicas") is not replica_set("Engine-test-other")
