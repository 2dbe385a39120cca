"""The replica set: it counts the requests on its replicas, and picks whom it may."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from serve_app.ingress.replica_choice import SEQUENCE_TOKENS, Replica, Reservation
from serve_app.ingress.replica_set import ReplicaSet

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


def test_equals_take_turns() -> None:
    assert picks(replicas("a", "b", "c"), 7) == ["a", "b", "c", "a", "b", "c", "a"]


def test_on_change_reports_replicas_and_room() -> None:
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


def test_on_change_reports_a_replica_without_failures_again() -> None:
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


def test_replica_missed_once_keeps_its_counts() -> None:
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


def test_running_requests_weigh_sequence_tokens() -> None:
    among = replicas("a", "b")
    running = taken(*(among.take(LIMIT) for _ in range(4)))
    for slot in running:
        among.note_first_byte(slot)
    a, b = among.take(LIMIT, SEQUENCE_TOKENS + 1), among.take(LIMIT)
    assert [slot.replica.replica_id for slot in taken(a, b)] == ["a", "b"]

    # a: 3 requests and 65 tokens; b: 3 requests. One more request makes b as heavy as a, but for a token.
    more = taken(among.take(LIMIT), among.take(LIMIT))

    assert [slot.replica.replica_id for slot in more] == ["b", "b"]


def test_replica_in_trouble_keeps_counts_and_is_not_picked() -> None:
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


def test_trouble_of_a_gone_replica_changes_nothing() -> None:
    among = replicas("a", "b")
    a, _ = among.listed()
    among.update(where("b"))

    among.keep_away(a, "silent")
    among.welcome(a)

    assert [one.replica_id for one in among.listed()] == ["b"]
    assert len(among) == 1


def test_continued_stream_goes_only_to_replicas_of_its_model() -> None:
    among = replicas("a")
    among.update({**where("a"), "b": {**where("b")["b"], "identity": "new"}})
    _, b = among.listed()

    assert [among.take(100, identity="new").replica for _ in range(3)] == [b] * 3  # type: ignore[union-attr]
    assert among.take(100, identity="other") is None
    assert [among.may_continue(identity) for identity in ("", "new", "other")] == [True, True, False]
    assert among.take(100, identity="new", refused=[b]) is None


IDS = st.sets(st.sampled_from("abcd"))


class Routing(RuleBasedStateMachine):
    """Requests that come, are answered, fail and end on replicas that come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.among = ReplicaSet(clock=lambda: self.now)
        self.known: set[str] = set()
        self.slots: list[tuple[Reservation, int]] = []
        """Every slot ever taken, with the tokens of its prompt."""
        self.answered: set[int] = set()
        self.released: set[int] = set()
        self.replicas: set[Replica] = set()
        self.heard = 0
        self.among.notify(self._hear)
        self.among.awaited = True

    def _hear(self) -> None:
        self.heard += 1

    @rule(ids=IDS)
    def ray_pushes_replicas(self, ids: set[str]) -> None:
        self.among.update({name: {"address": name, "token": name} for name in sorted(ids)})
        self.known = ids

    @rule(limit=st.integers(1, 5), tokens=st.integers(0, 3000))
    def a_request_comes(self, limit: int, tokens: int) -> None:
        candidates = list(self.among._usable.values())
        least = min((replica.failures for replica in candidates), default=0)
        rooms = [
            (replica.load, replica.in_flight)
            for replica in candidates
            if replica.failures == least and replica.in_flight < limit
        ]
        slot = self.among.take(limit, tokens)
        if slot is None:
            assert not rooms
            return
        replica = slot.replica
        assert replica.replica_id in self.known
        assert (replica.load - tokens - SEQUENCE_TOKENS, replica.in_flight - 1) == min(rooms)
        assert replica.failures == least
        self.slots.append((slot, tokens))
        self.replicas.add(replica)

    @rule(limit=st.integers(1, 5), tokens=st.integers(0, 3000), prefill_budget_s=st.floats(0.0, 1.0))
    def a_stream_comes(self, limit: int, tokens: int, prefill_budget_s: float) -> None:
        candidates = list(self.among._usable.values())
        least = min((replica.failures for replica in candidates), default=0)
        full = all(replica.in_flight >= limit for replica in candidates if replica.failures == least)
        slot = self.among.take(limit, tokens, prefill_budget_s)
        assert (slot is None) == full
        if slot is None:
            return
        assert slot.replica.replica_id in self.known
        assert slot.replica.failures == least
        assert (slot.group >= 0) == (prefill_budget_s > 0 and tokens > 0)
        self.slots.append((slot, tokens))
        self.replicas.add(slot.replica)

    @rule(seconds=st.floats(0.0, 2.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.slots)
    @rule(data=st.data())
    def its_first_byte_comes(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.slots) - 1))
        self.among.note_first_byte(self.slots[number][0])
        self.answered.add(number)

    @precondition(lambda self: self.slots)
    @rule(data=st.data(), unreachable=st.booleans())
    def it_ends(self, data: st.DataObject, unreachable: bool) -> None:
        number = data.draw(st.integers(0, len(self.slots) - 1))
        slot, _ = self.slots[number]
        if unreachable:
            slot.replica.failures += 1
        before = self.heard
        self.among.release(slot)
        assert self.heard - before == (number not in self.released)
        self.released.add(number)

    @invariant()
    def every_count_is_that_of_the_places_held(self) -> None:
        for replica in self.replicas:
            held = [
                (number, tokens)
                for number, (slot, tokens) in enumerate(self.slots)
                if slot.replica is replica and number not in self.released
            ]
            pending = sum(tokens for number, tokens in held if number not in self.answered)
            assert replica.in_flight == len(held)
            assert replica.pending_prompt_tokens == pending
            assert replica.load == pending + SEQUENCE_TOKENS * len(held)

    @invariant()
    def groups_hold_who_has_no_token_of_them_yet(self) -> None:
        for replica in self.replicas:
            waiting = [
                (slot.group - replica.group, tokens)
                for number, (slot, tokens) in enumerate(self.slots)
                if slot.replica is replica and slot.group >= replica.group
                if number not in self.released and number not in self.answered
            ]
            assert all(ahead in (0, 1) for ahead, _ in waiting)
            assert replica.group_tokens == sum(tokens for ahead, tokens in waiting if ahead == 0)
            assert replica.next_tokens == sum(tokens for ahead, tokens in waiting if ahead == 1)
            assert replica.next_requests == sum(ahead for ahead, _ in waiting)
            # A group waits for one under way, or nobody would tell when it begins.
            assert replica.group_tokens or not replica.next_requests


Routing.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRouting = Routing.TestCase
