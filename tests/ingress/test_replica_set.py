"""The replica set: its list of replicas, its counts of requests, and its reports of changes and trouble."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from serve_app.ingress.replica import SEQUENCE_TOKENS, Replica, Reservation
from serve_app.ingress.replica_set import ReplicaSet

LIMIT = 1000


def where(*ids: str) -> dict[str, dict[str, str]]:
    return {
        name: {"address": f"10.0.0.1:{ord(name)}", "token": f"key-{name}", "identity": ""} for name in ids
    }


def replicas(*ids: str) -> ReplicaSet:
    made = ReplicaSet()
    made.update(where(*ids))
    return made


def take(among: ReplicaSet, *ids: str, tokens: int = 0, adapter: str = "") -> list[Reservation]:
    """Take one reservation for each of these ids, and check that they are picked in this order."""
    taken = [slot for slot in (among.take(LIMIT, tokens, adapter=adapter) for _ in ids) if slot is not None]
    assert [slot.replica.replica_id for slot in taken] == list(ids)
    return taken


def test_equal_replicas_take_turns() -> None:
    among = replicas("a", "b", "c")
    for name in "abcabca":
        among.release(*take(among, name))


def test_a_running_request_weighs_as_much_as_64_prompt_tokens() -> None:
    among = replicas("a", "b")
    for slot in take(among, "a", "b", "a", "b"):
        among.note_first_byte(slot)
    take(among, "a", tokens=SEQUENCE_TOKENS + 1)

    # a: 3 requests and 65 tokens; b: 2 requests. Two more requests make b as heavy as a, but for a token.
    take(among, "b", "b", "b", "a")


def test_a_request_goes_where_its_adapter_is_or_is_being_loaded() -> None:
    among = replicas("a", "b", "c")
    (slot,) = take(among, "a", adapter="pirate")
    take(among, "a", adapter="pirate")  # the heartbeat has not come yet

    among.release(slot)
    take(among, "b", "c", "a")  # requests for the model itself
    take(among, "a", adapter="pirate")
    take(among, "b", adapter="sailor")


def test_an_adapter_spreads_once_its_queue_costs_more_than_a_load() -> None:
    among = replicas("a", "b")
    for replica in among.listed():
        replica.adapter_load_s = 0.01
    assert among.choice.prefill_speed() == 20_000
    take(among, "a", adapter="pirate")

    # A load takes as long as 0.01 s * 20,000 tokens/s = 200 tokens, and b without it counts 400 more.
    # a has the load and one request, 264 tokens, then 378, then 442.
    take(among, "a", tokens=50, adapter="pirate")
    take(among, "a", adapter="pirate")
    take(among, "b", adapter="pirate")


def test_requests_for_the_model_itself_avoid_a_replica_that_loads() -> None:
    among = ReplicaSet(clock=lambda: 0.0)
    among.update(where("a", "b"))
    among.choice.learn_pace(0.01, 200.0, 200)
    take(among, "a", adapter="pirate")

    for _ in range(3):
        slot = among.take(LIMIT, 100, 1.0)
        assert slot is not None
        assert slot.replica.replica_id == "b"


def test_a_load_does_not_count_as_a_slow_prefill() -> None:
    now = 0.0
    among = ReplicaSet(clock=lambda: now)
    among.update(where("a"))
    loads = among.take(LIMIT, 100, 1.0, adapter="pirate")
    assert loads is not None
    now = 5.0
    among.note_first_byte(loads)
    assert among.choice.pace.other == 0.0

    finds = among.take(LIMIT, 100, 1.0, adapter="pirate")
    assert finds is not None
    now = 5.1
    among.note_first_byte(finds)
    assert 999 <= among.choice.prefill_speed() <= 1001


def test_only_a_waiting_queue_hears_of_room() -> None:
    among = replicas("a", "b")
    heard: list[str] = []
    among.on_change.append(lambda: heard.append(""))
    first, second, third = take(among, "a", "b", "a")
    among.release(first)
    assert len(heard) == 0

    among.awaited = True
    among.release(second)
    assert len(heard) == 1
    among.note_first_byte(third)
    assert len(heard) == 1
    third.replica.failures = 2
    among.note_first_byte(third)  # it is picked again before others
    assert (len(heard), third.replica.failures) == (2, 0)


def test_trouble_is_reported_once_and_to_the_next_who_can_help() -> None:
    among = replicas("a")
    told: list[str] = []
    among.on_trouble.append(lambda replica: told.append(f"{replica.replica_id}: {replica.trouble}"))
    (slot,) = take(among, "a")

    among.keep_away(slot.replica, "silent")
    among.keep_away(slot.replica, "its engine core has died")
    assert told == ["a: silent"]

    among.update(where("a", "b"))  # which can take over its request
    assert told == ["a: silent", "a: its engine core has died"]


def test_trouble_of_a_gone_replica_changes_nothing() -> None:
    among = replicas("a", "b")
    a, _ = among.listed()
    among.update(where("b"))

    among.keep_away(a, "silent")
    among.welcome(a)

    assert ([one.replica_id for one in among.listed()], len(among)) == (["b"], 1)


def test_continued_stream_goes_only_to_replicas_of_its_model() -> None:
    among = replicas("a")
    among.update({**where("a"), "b": {**where("b")["b"], "identity": "new"}})
    _, b = among.listed()

    assert [among.take(100, model_identity="new").replica for _ in range(3)] == [b] * 3  # type: ignore[union-attr]
    assert among.take(100, model_identity="other") is None
    assert [among.may_continue(identity) for identity in ("", "new", "other")] == [True, True, False]
    assert among.take(100, model_identity="new", refused=[b]) is None


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
        self.among.on_change.append(self._hear)
        self.among.awaited = True

    def _hear(self) -> None:
        self.heard += 1

    def _usable(self) -> list[Replica]:
        return [replica for replica in self.among.listed() if not replica.trouble]

    @rule(ids=IDS)
    def ray_pushes_replicas(self, ids: set[str]) -> None:
        self.among.update({name: {"address": name, "token": name, "identity": ""} for name in sorted(ids)})
        self.known = ids

    @precondition(lambda self: self.replicas)
    @rule(data=st.data(), trouble=st.sampled_from(["", "silent"]))
    def a_heartbeat_comes(self, data: st.DataObject, trouble: str) -> None:
        replica = data.draw(st.sampled_from(sorted(self.replicas, key=lambda each: each.replica_id)))
        before, cured = self.heard, bool(replica.trouble) and not trouble
        lost = bool(trouble) and any(one is replica for one in self._usable())
        if trouble:
            self.among.keep_away(replica, trouble)
        else:
            self.among.welcome(replica)
        assert self.heard - before == (lost or (cured and any(one is replica for one in self.among.listed())))

    @rule(limit=st.integers(1, 5), tokens=st.integers(0, 3000))
    def a_request_comes(self, limit: int, tokens: int) -> None:
        candidates = self._usable()
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
        assert replica in candidates
        assert (replica.load - tokens - SEQUENCE_TOKENS, replica.in_flight - 1) == min(rooms)
        assert replica.failures == least
        self.slots.append((slot, tokens))
        self.replicas.add(replica)

    @rule(limit=st.integers(1, 5), tokens=st.integers(0, 3000), prefill_budget_s=st.floats(0.0, 1.0))
    def a_stream_comes(self, limit: int, tokens: int, prefill_budget_s: float) -> None:
        candidates = self._usable()
        least = min((replica.failures for replica in candidates), default=0)
        full = all(replica.in_flight >= limit for replica in candidates if replica.failures == least)
        slot = self.among.take(limit, tokens, prefill_budget_s)
        assert (slot is None) == full
        if slot is None:
            return
        assert slot.replica in candidates
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

    @precondition(lambda self: len(self.slots) > len(self.released))
    @rule(data=st.data(), unreachable=st.booleans())
    def it_ends(self, data: st.DataObject, unreachable: bool) -> None:
        number = data.draw(st.sampled_from([n for n in range(len(self.slots)) if n not in self.released]))
        slot, _ = self.slots[number]
        if unreachable:
            slot.replica.failures += 1
        before = self.heard
        self.among.release(slot)
        assert self.heard - before == 1
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
    def a_replica_with_requests_keeps_its_counts_while_it_is_missed(self) -> None:
        assert len(self.among) == len(self._usable())
        listed = {replica.replica_id: replica for replica in self.among.listed()}
        assert set(listed) == self.known
        for replica in self.replicas:
            if replica.in_flight and replica.replica_id in listed:
                assert listed[replica.replica_id] is replica

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
