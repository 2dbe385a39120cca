"""The choice of a replica by prefill groups, cached prefixes and load.

`tests/replay/fleet/test_routing.py` compares whole runs with the pick of the replay.
"""

import math

import pytest

from serve_app.api.prompt_prefix import BLOCK_BYTES, PromptPrefix
from serve_app.ingress.replica import Reservation
from serve_app.ingress.replica_choice import GROUP_REQUESTS
from serve_app.ingress.replica_set import ReplicaSet
from serve_app.wire.signals import BYTES_PER_TOKEN
from tests.ingress.test_replica_set import where

LIMIT = 1000
PREFILL_BUDGET_S = 0.16
PACE_S = 50e-6
"""The seconds of a prompt token: 1 s for 20,000."""
BLOCK_TOKENS = BLOCK_BYTES // BYTES_PER_TOKEN


def prompt(*blocks: int) -> PromptPrefix:
    return PromptPrefix(len(blocks) * BLOCK_BYTES, blocks, 0)


class Ingress:
    """Replicas with `running` requests each, which show the pace of prefill, and a clock."""

    def __init__(self, *ids: str, running: int = 0) -> None:
        self.now = 100.0
        self.among = ReplicaSet(clock=lambda: self.now)
        self.among.update(where(*ids))
        self.choice = self.among.choice
        for _ in range(running * len(ids)):
            slot = self.send(1000)
            self.now += 1000 * PACE_S
            self.among.note_first_byte(slot)

    def send(
        self, tokens: int, budget_s: float = PREFILL_BUDGET_S, prefix: PromptPrefix | None = None
    ) -> Reservation:
        slot = self.among.take(LIMIT, tokens, budget_s, prefix=prefix)
        assert slot is not None
        return slot

    def ask(self, *blocks: int, budget_s: float = PREFILL_BUDGET_S) -> Reservation:
        return self.send(len(blocks) * BLOCK_TOKENS, budget_s, prompt(*blocks))

    def burst(self, *tokens: int, budget_s: float = PREFILL_BUDGET_S) -> str:
        """Return the replicas of streams that come at the same moment."""
        return "".join(self.send(each, budget_s).replica.replica_id for each in tokens)

    def answer(self, slot: Reservation) -> str:
        self.among.note_first_byte(slot)
        self.among.release(slot)
        return slot.replica.replica_id

    @property
    def tokens_per_s(self) -> float:
        return self.choice.pace.amount / self.choice.pace.other


@pytest.mark.parametrize(
    ("tokens", "step_tokens", "budget_s", "went"),
    [
        # The first begins a group on a. The second would make 2 streams late on b, or half of a's 3. The
        # others join the second.
        ([200] * 4, math.inf, 0.16, "aaaa"),
        # A fourth prompt of 800 does not fit the next step: half of a's five streams would be late, or b's 2.
        ([800] * 4, 2000, 0.32, "aaab"),
        # Prompts that can share no step do not wait for each other.
        ([1000] * 2, 8000, 0.16, "aa"),
        ([1000] * 2, 1000, 0.16, "ab"),
        # A full group waits behind the one under way.
        ([100] * (GROUP_REQUESTS + 2), math.inf, 0.16, "aaaaab"),
        # The prefill budget of 0.16 s is 3,200 tokens.
        ([1500, 1500, 300], math.inf, 0.16, "aab"),
        # Beyond every budget, the least load counts.
        ([500, 5000, 5000], math.inf, 0.16, "aba"),
        # Waiting ends after a full group and one request of the mean length: 5,000 tokens.
        ([1000] * 6, math.inf, 1.6, "aaaaab"),
        # Requests that are not streams join no group.
        ([200] * 3, math.inf, 0.0, "aba"),
    ],
)
def test_a_burst_beside_two_streams_each(
    tokens: list[int], step_tokens: float, budget_s: float, went: str
) -> None:
    ingress = Ingress("a", "b", running=2)
    ingress.choice.step_tokens = step_tokens

    assert ingress.burst(*tokens, budget_s=budget_s) == went


def test_an_idle_replica_is_taken_before_any_group() -> None:
    ingress = Ingress("a", "b", "c")
    slot = ingress.send(1000)
    ingress.now += 0.05
    ingress.among.note_first_byte(slot)

    assert ingress.burst(200, 200) == "bc"


def test_no_group_begins_behind_a_full_batch_or_a_hung_engine() -> None:
    ingress = Ingress("a", "b", running=2)
    assert ingress.burst(200) == "a"

    slot = ingress.among.take(LIMIT, 200, PREFILL_BUDGET_S, batch=3)
    assert slot is not None
    assert slot.replica.replica_id == "b"

    hung = Ingress("a", "b", running=2)
    assert hung.burst(200, 200) == "aa"
    hung.now += PREFILL_BUDGET_S + 0.01
    assert hung.burst(200, 200) == "bb"


def test_without_a_known_pace_the_least_load_counts() -> None:
    ingress = Ingress("a", "b")
    ingress.send(100, 0.0)

    assert ingress.burst(200, 200, 200) == "bab"


def test_the_pace_counts_all_tokens_ahead_of_a_prompt() -> None:
    ingress = Ingress("a")
    first, second = ingress.send(1000), ingress.send(3000)
    ingress.now += 0.1
    ingress.among.note_first_byte(first)
    ingress.now += 0.3
    ingress.among.note_first_byte(second)

    # 1,000 tokens in 0.1 s, then 4,000 in 0.4 s.
    assert ingress.tokens_per_s == pytest.approx(10_000)


def test_prompt_without_prefill_counts_at_most_twice_the_pace() -> None:
    """It was cached, or its bytes were an image's."""
    ingress = Ingress("a", running=100)
    slot = ingress.send(32_000)
    ingress.now += 0.05
    ingress.among.note_first_byte(slot)

    assert ingress.tokens_per_s == pytest.approx(1 / PACE_S, rel=0.02)


def test_unstreamed_requests_leave_the_pace() -> None:
    """Their first byte is their last, and does not show when the prompt was prefilled."""
    ingress = Ingress("a", running=1)
    before = (ingress.choice.pace.amount, ingress.choice.pace.other)

    ingress.answer(ingress.send(200, 0.0))

    assert (ingress.choice.pace.amount, ingress.choice.pace.other) == before


# Cached prefixes.


@pytest.mark.parametrize("budget_s", [PREFILL_BUDGET_S, 0.0])
def test_the_next_turn_goes_where_the_one_before_it_was(budget_s: float) -> None:
    ingress = Ingress("a", "b", "c", running=1)
    went = ingress.answer(ingress.ask(1, 2, 3, budget_s=budget_s))

    for turn in range(4, 9):
        assert ingress.answer(ingress.ask(*range(1, turn + 1), budget_s=budget_s)) == went


def test_only_uncached_tokens_count_as_load() -> None:
    ingress = Ingress("a", "b", running=1)
    ingress.answer(ingress.ask(1, 2, 3))

    slot = ingress.ask(1, 2, 3, 4)
    assert slot.pending_prompt_tokens == slot.replica.pending_prompt_tokens == BLOCK_TOKENS
    assert slot.expected.size == 3 * BLOCK_BYTES
    assert ingress.ask(1, 2, 3).pending_prompt_tokens == 1  # the last token is always computed


@pytest.mark.parametrize("budget_s", [PREFILL_BUDGET_S, 0.0])
def test_a_hot_prefix_spreads_where_waiting_costs_more_than_prefilling(budget_s: float) -> None:
    """Five blocks are cached on one replica. Each request brings a sixth of its own, and none is answered."""
    ingress = Ingress("a", "b", "c", "d", running=1)
    ingress.answer(ingress.ask(1, 2, 3, 4, 5, budget_s=budget_s))

    slots = [ingress.ask(1, 2, 3, 4, 5, 100 + number, budget_s=budget_s) for number in range(200)]

    counts = [sum(slot.replica.replica_id == name for slot in slots) for name in "abcd"]
    assert max(counts) <= 1.5 * len(slots) / 4
    # Each replica had to prefill it once.
    assert sum(slot.pending_prompt_tokens > BLOCK_TOKENS for slot in slots) == 3


def test_sharing_is_the_share_of_prompts_with_a_cached_prefix() -> None:
    ingress = Ingress("a", "b", running=1)
    for number in range(500):
        ingress.answer(ingress.ask(1, 2, 1000 + number) if number % 4 == 0 else ingress.ask(2000 + number))

    assert ingress.choice.sharing == pytest.approx(0.25, abs=0.01)
