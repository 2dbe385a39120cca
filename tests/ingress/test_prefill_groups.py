"""Streams whose prompts share a step: which replica's, how many, and until when."""

import pytest

from serve_app.ingress.replica_choice import GROUP_REQUESTS, Reservation
from serve_app.ingress.replica_set import ReplicaSet
from tests.ingress.test_replica_set import where

LIMIT = 1000
PREFILL_BUDGET_S = 0.16
PACE_S = 50e-6
"""Seconds a prompt token takes: 1 s per 20,000."""


class Ingress:
    """A set of replicas, one clock, and requests by name."""

    def __init__(self, *ids: str, running: int = 0, paced: bool = True) -> None:
        self.now = 100.0
        self.among = ReplicaSet(clock=lambda: self.now)
        self.among.update(where(*ids))
        for _ in range(running * len(ids)):
            self.first_token(self.send(1000, paced=paced))

    def send(
        self, tokens: int, prefill_budget_s: float = PREFILL_BUDGET_S, *, paced: bool = True
    ) -> Reservation:
        """A stream that has its first token once its own prompt is prefilled, unless told otherwise."""
        slot = self.among.take(LIMIT, tokens, prefill_budget_s)
        assert slot is not None
        if paced:
            self.now += tokens * PACE_S
        return slot

    def burst(self, *tokens: int, prefill_budget_s: float = PREFILL_BUDGET_S) -> list[str]:
        """Where streams go that come at the same moment."""
        return [self.send(each, prefill_budget_s, paced=False).replica.replica_id for each in tokens]

    def first_token(self, slot: Reservation) -> None:
        self.among.note_first_byte(slot)


def test_prompts_share_the_step_after_the_one_under_way() -> None:
    """Beginning a group beside two running streams makes two late; joining one makes none."""
    ingress = Ingress("a", "b", running=2)

    # The first begins a group on a; the second would make 2 streams late on b, or, where others are likely
    # to join it, half of a's 3; the others join the second.
    assert ingress.burst(200, 200, 200, 200) == ["a", "a", "a", "a"]
    (a,) = (replica for replica in ingress.among._usable.values() if replica.replica_id == "a")
    assert (a.group_tokens, a.next_tokens, a.next_requests) == (200, 600, 3)


def test_only_prompts_that_fit_the_step_join_without_delay() -> None:
    """A third prompt of 800 tokens does not fit a step of 2,000."""
    ingress = Ingress("a", "b", running=2)
    ingress.among.step_tokens = 2000

    # On a one is under way and two share the step after it: half of a's five streams, or the two of b.
    assert ingress.burst(*[800] * 4, prefill_budget_s=0.32) == ["a", "a", "a", "b"]


def test_prompts_too_long_to_share_a_step_do_not_wait() -> None:
    """Grouped, the second waits for the first on a, which makes half of three streams late and not two."""
    for step_tokens, expected in {8000: "a", 1000: "b"}.items():
        ingress = Ingress("a", "b", running=2)
        ingress.among.step_tokens = step_tokens

        assert ingress.burst(1000, 1000) == ["a", expected]


def test_a_replica_that_runs_nothing_is_taken_before_any_group() -> None:
    ingress = Ingress("a", "b", "c")
    ingress.first_token(ingress.send(1000))

    assert set(ingress.burst(200, 200)) == {"b", "c"}


def test_a_group_has_so_many_requests_and_no_more() -> None:
    ingress = Ingress("a", "b", running=2)

    went = ingress.burst(*[100] * (GROUP_REQUESTS + 2))

    # One under way, a group full behind it; the next begins one elsewhere, where 2 run and not 7.
    assert went == ["a"] * (GROUP_REQUESTS + 1) + ["b"]


def test_nobody_joins_a_group_beyond_its_prefill_budget() -> None:
    """0.16 s are 3,200 tokens, its own included."""
    ingress = Ingress("a", "b", running=2)

    assert ingress.burst(1500, 1500, 300) == ["a", "a", "b"]


def test_prompt_beyond_every_prefill_budget_goes_to_least_load() -> None:
    ingress = Ingress("a", "b", running=2)

    assert ingress.burst(500, 5000, 5000) == ["a", "b", "a"]


def test_waiting_ends_after_a_full_group_and_one_request() -> None:
    """At a lax target: a full group and one request more, of the mean length, are 5,000 tokens."""
    ingress = Ingress("a", "b", running=2)

    assert ingress.burst(1000, 1000, 1000, 1000, 1000, 1000, prefill_budget_s=1.6) == ["a"] * 5 + ["b"]


def test_no_group_is_begun_behind_a_full_batch() -> None:
    ingress = Ingress("a", "b", running=2)
    ingress.burst(200)

    slot = ingress.among.take(LIMIT, 200, PREFILL_BUDGET_S, batch=3)

    assert slot is not None
    assert slot.replica.replica_id == "b"


def test_nobody_joins_a_group_whose_engine_stands_still() -> None:
    ingress = Ingress("a", "b", running=2)
    assert ingress.burst(200, 200) == ["a", "a"]

    ingress.now += PREFILL_BUDGET_S + 0.01

    assert ingress.burst(200, 200) == ["b", "b"]


def test_prompt_without_prefill_counts_at_most_twice_the_pace() -> None:
    """A prefix cache had it, or its bytes were an image's."""
    ingress = Ingress("a", running=100)
    pace = ingress.among.pace.tokens / ingress.among.pace.seconds
    slot = ingress.send(32_000, paced=False)
    ingress.now += 0.05
    ingress.first_token(slot)

    assert ingress.among.pace.tokens / ingress.among.pace.seconds == pytest.approx(pace, rel=0.02)


def test_unknown_pace_picks_the_least_load() -> None:
    ingress = Ingress("a", "b")
    a = ingress.among.take(LIMIT, 100, 0.0)
    assert a is not None

    assert ingress.burst(200, 200, 200) == ["b", "a", "b"]


def test_unstreamed_requests_join_no_group_and_leave_the_pace() -> None:
    """Their first byte is their last: it says nothing of when the prompt was prefilled."""
    ingress = Ingress("a", "b", running=1)
    pace = (ingress.among.pace.seconds, ingress.among.pace.tokens)

    assert ingress.burst(200, 200, 200, prefill_budget_s=0.0) == ["a", "b", "a"]
    whole = ingress.send(200, 0.0)
    ingress.first_token(whole)

    assert whole.group == -1
    assert (ingress.among.pace.seconds, ingress.among.pace.tokens) == pace
    assert all(not replica.group_tokens for replica in ingress.among._usable.values())


def groups(slot: Reservation) -> tuple[int, int, int]:
    replica = slot.replica
    return replica.group_tokens, replica.next_tokens, replica.next_requests


def test_first_token_ends_a_group_and_begins_the_next() -> None:
    ingress = Ingress("a")
    first, second, third = (ingress.send(tokens, paced=False) for tokens in (100, 200, 300))
    assert groups(first) == (100, 500, 2)

    ingress.first_token(first)
    assert groups(first) == (500, 0, 0)
    # The other prompts of a group have been prefilled with the one whose token comes first.
    ingress.first_token(third)
    assert groups(first) == (0, 0, 0)
    later = ingress.send(400, paced=False)
    ingress.first_token(second)
    assert groups(later) == (400, 0, 0)


def test_first_token_of_the_next_group_ends_both() -> None:
    """Both had come before the same step began."""
    ingress = Ingress("a")
    ingress.send(100, paced=False)
    second = ingress.send(200, paced=False)

    ingress.first_token(second)

    assert groups(second) == (0, 0, 0)


def test_pace_counts_all_tokens_ahead_of_a_prompt() -> None:
    ingress = Ingress("a")
    first = ingress.send(1000, paced=False)
    second = ingress.send(3000, paced=False)
    ingress.now += 0.1
    ingress.first_token(first)
    ingress.now += 0.3
    ingress.first_token(second)

    # 1,000 tokens in 0.1 s, then 4,000 in 0.4 s: 10,000 a second.
    assert ingress.among.pace.tokens / ingress.among.pace.seconds == pytest.approx(10_000)
