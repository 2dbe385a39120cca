from serve_app.ingress.replica_choice import SEQUENCE_TOKENS, Reservation
from serve_app.ingress.replica_set import ReplicaSet, replica_set

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
        (slot,) = taken(among.take(LIMIT))
        picked.append(slot.replica.replica_id)
        among.release(slot)
    return picked


def taken(*slots: Reservation | None) -> list[Reservation]:
    assert None not in slots
    return [slot for slot in slots if slot is not None]


def take(among: ReplicaSet, *ids: str) -> list[Reservation]:
    """Requests put on replicas, which have to be those of these ids in turn."""
    slots = taken(*(among.take(LIMIT) for _ in ids))
    assert [slot.replica.replica_id for slot in slots] == list(ids)
    return slots


def test_where_there_is_no_replica_none_is_picked() -> None:
    assert ReplicaSet().take(LIMIT) is None
    assert len(ReplicaSet()) == 0


def test_a_replica_comes_with_its_address_and_its_token() -> None:
    (slot,) = take(replicas("a"), "a")

    assert (slot.replica.address, slot.replica.token) == ("10.0.0.1:97", "key-a")


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

    slots = taken(*(among.take(2) for _ in range(4)))
    assert among.take(2) is None
    among.release(slots[1])
    (another,) = taken(among.take(2))
    assert another.replica is slots[1].replica


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

    a.replica.failures = 1
    assert picks(among, 2) == ["b", "b"]
    b.replica.failures = 2
    assert picks(among, 2) == ["a", "a"]
    a.replica.failures = b.replica.failures = 0
    among.release(b)
    assert set(picks(among, 2)) == {"a", "b"}


def test_the_only_replica_is_picked_even_if_it_could_not_be_reached() -> None:
    among = replicas("a")
    (a,) = take(among, "a")

    a.replica.failures = 3

    (another,) = taken(among.take(LIMIT))
    assert another.replica is a.replica


def test_a_replica_that_could_not_be_reached_does_not_stand_in_for_full_ones() -> None:
    """Who waits would be sent there over and over, and be refused for it in the end."""
    among = replicas("a", "b")
    a, b = take(among, "a", "b")
    among.release(a)
    a.replica.failures = 1

    assert among.take(1) is None
    b.replica.failures = 2
    (another,) = taken(among.take(1))
    assert another.replica is a.replica


def test_a_request_may_end_on_a_replica_that_went_meanwhile() -> None:
    among = replicas("a")
    (a,) = take(among, "a")

    among.update({})
    assert among.in_flight("a") == 0
    among.release(a)

    assert (a.replica.in_flight, a.replica.load) == (0, 0)


def test_whoever_waits_hears_of_replicas_that_come_and_go_and_of_room_on_them() -> None:
    among = ReplicaSet()
    heard: list[int] = []
    among.notify(lambda: heard.append(sum(among.in_flight(name) for name in "ab")))
    among.awaited = True

    among.update(where("a", "b"))
    a, _ = take(among, "a", "b")
    assert heard == [0]
    among.release(a)
    assert heard == [0, 1]
    among.update({})
    assert heard == [0, 1, 0]


def test_whoever_waits_hears_of_a_replica_that_is_one_of_equals_again() -> None:
    among = replicas("a", "b")
    a, _ = take(among, "a", "b")
    heard: list[int] = []
    among.notify(lambda: heard.append(a.replica.failures))
    among.awaited = True

    among.note_first_byte(a)
    assert heard == []
    a.replica.failures = 2
    among.note_first_byte(a)

    assert (a.replica.failures, heard) == (0, [0])


def test_a_replica_that_is_missed_once_comes_back_with_what_it_has() -> None:
    among = replicas("a", "b")
    slots = [slot for slot in (among.take(LIMIT) for _ in range(8)) if slot]
    among.update(where("b"))
    among.update(where("a", "b"))
    assert (among.in_flight("a"), among.in_flight("b")) == (4, 4)

    among.update(where("b"))
    for slot in slots:
        among.release(slot)
    among.update(where("a", "b"))
    assert (among.in_flight("a"), among.in_flight("b")) == (0, 0)


def test_a_prompt_weighs_until_its_replica_answers_and_its_request_until_it_ends() -> None:
    among = replicas("a")
    (slot,) = taken(among.take(LIMIT, 1000))
    assert among.load("a") == 1000 + SEQUENCE_TOKENS
    assert slot.replica.pending_prompt_tokens == 1000

    among.note_first_byte(slot)
    assert among.load("a") == SEQUENCE_TOKENS
    among.note_first_byte(slot)
    assert among.load("a") == SEQUENCE_TOKENS
    among.release(slot)
    assert among.load("a") == 0


def test_who_ends_without_an_answer_leaves_nothing_behind() -> None:
    among = replicas("a")
    (slot,) = taken(among.take(LIMIT, 1000))

    among.release(slot)

    assert (among.load("a"), among.in_flight("a"), slot.replica.pending_prompt_tokens) == (0, 0, 0)


def test_a_place_is_given_back_once() -> None:
    among = replicas("a")
    slot, _ = taken(among.take(LIMIT, 10), among.take(LIMIT, 20))
    heard: list[int] = []
    among.notify(lambda: heard.append(among.in_flight("a")))
    among.awaited = True

    for _ in range(3):
        among.release(slot)
    among.note_first_byte(slot)

    assert (among.in_flight("a"), among.load("a"), heard) == (1, 20 + SEQUENCE_TOKENS, [1])


def test_a_replica_with_a_long_prompt_gets_no_other_until_that_one_is_prefilled() -> None:
    among = replicas("a", "b")
    (long,) = taken(among.take(LIMIT, 10 * SEQUENCE_TOKENS))
    assert long.replica.replica_id == "a"

    short = taken(*(among.take(LIMIT) for _ in range(8)))
    assert {slot.replica.replica_id for slot in short} == {"b"}
    among.note_first_byte(long)

    assert picks(among, 2) == ["a", "a"]


def test_requests_that_run_weigh_as_many_tokens_as_the_constant_says() -> None:
    among = replicas("a", "b")
    running = taken(*(among.take(LIMIT) for _ in range(4)))
    for slot in running:
        among.note_first_byte(slot)
    a, b = among.take(LIMIT, SEQUENCE_TOKENS + 1), among.take(LIMIT)
    assert [slot.replica.replica_id for slot in taken(a, b)] == ["a", "b"]

    # a: 3 requests and 65 tokens; b: 3 requests. One more request makes b as heavy as a, but for a token.
    more = taken(among.take(LIMIT), among.take(LIMIT))

    assert [slot.replica.replica_id for slot in more] == ["b", "b"]


def test_of_equal_loads_the_one_with_fewer_requests_is_picked() -> None:
    among = replicas("a", "b")
    taken(among.take(LIMIT, SEQUENCE_TOKENS), among.take(LIMIT), among.take(LIMIT))
    assert (among.load("a"), among.load("b")) == (2 * SEQUENCE_TOKENS, 2 * SEQUENCE_TOKENS)
    assert (among.in_flight("a"), among.in_flight("b")) == (1, 2)

    assert picks(among, 3) == ["a", "a", "a"]


def test_a_full_replica_with_the_least_load_leaves_the_request_to_others() -> None:
    among = replicas("a", "b")
    taken(among.take(1, 1000))
    taken(among.take(2), among.take(2))
    assert among.load("b") < among.load("a")

    (slot,) = taken(among.take(2))

    assert slot.replica.replica_id == "a"
    assert among.take(2) is None


def test_router_and_client_of_a_deployment_share_one_set_and_other_deployments_have_their_own() -> None:
    assert replica_set("Engine-test-replicas") is replica_set("Engine-test-replicas")
    assert replica_set("Engine-test-replicas") is not replica_set("Engine-test-other")


def test_a_replica_in_trouble_is_not_picked_and_keeps_its_counts() -> None:
    among = replicas("a", "b")
    (a,) = take(among, "a")

    among.keep_away(a.replica, "silent")

    assert len(among) == 1
    assert picks(among, 3) == ["b", "b", "b"]
    assert [(one.replica_id, one.trouble) for one in among.listed()] == [("a", "silent"), ("b", "")]
    among.update(where("a", "b"))
    assert len(among) == 1
    among.welcome(a.replica)
    assert len(among) == 2
    assert among.in_flight("a") == 1


def test_whoever_waits_hears_of_a_replica_that_is_well_again() -> None:
    among = replicas("a")
    (replica,) = among.listed()
    among.keep_away(replica, "silent")
    told: list[int] = []
    among.notify(lambda: told.append(len(among)))
    among.awaited = True

    among.welcome(replica)
    among.welcome(replica)

    assert told == [1]


def test_trouble_is_told_once() -> None:
    among = replicas("a", "b")
    told: list[str] = []
    among.notify_trouble(lambda replica: told.append(f"{replica.replica_id}: {replica.trouble}"))
    a, _ = among.listed()

    among.keep_away(a, "silent")
    among.keep_away(a, "its engine core has died")

    assert told == ["a: silent"]
    assert a.trouble == "its engine core has died"


def test_a_replica_that_is_gone_is_neither_kept_away_nor_welcomed() -> None:
    among = replicas("a", "b")
    a, _ = among.listed()
    among.update(where("b"))

    among.keep_away(a, "silent")
    among.welcome(a)

    assert [one.replica_id for one in among.listed()] == ["b"]
    assert len(among) == 1


def test_where_no_request_waits_nobody_is_told_of_a_slot_that_is_free() -> None:
    among = replicas("a")
    told: list[int] = []
    among.notify(lambda: told.append(len(among)))

    for slot in taken(among.take(LIMIT), among.take(LIMIT)):
        slot.replica.failures += 1
        among.note_first_byte(slot)
        among.release(slot)
    assert told == []

    among.update({})
    assert told == [0]


def test_only_replicas_of_the_same_model_are_picked_for_a_stream_that_goes_on() -> None:
    among = replicas("a")
    among.update({**where("a"), "b": {**where("b")["b"], "identity": "new"}})
    _, b = among.listed()

    assert [among.take(100, identity="new").replica for _ in range(3)] == [b] * 3  # type: ignore[union-attr]
    assert among.take(100, identity="other") is None
    assert [among.may_continue(identity) for identity in ("", "new", "other")] == [True, True, False]
    assert among.take(100, identity="new", refused=[b]) is None
