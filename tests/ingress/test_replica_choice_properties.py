"""Whatever happens in whatever order, the set counts what is there and picks whom it may."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from serve_app.ingress.replica_choice import SEQUENCE_TOKENS, Replica, Reservation
from serve_app.ingress.replica_set import ReplicaSet

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
