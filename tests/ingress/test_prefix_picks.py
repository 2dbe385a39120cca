"""Where prompts go of which some replica holds a beginning."""

import pytest

from serve_app.api.prompt_prefix import BLOCK_BYTES, PromptPrefix
from serve_app.ingress.prefix_index import BYTES_PER_TOKEN
from serve_app.ingress.replica_choice import Reservation
from serve_app.ingress.replica_set import ReplicaSet
from tests.ingress.test_replica_set import where

LIMIT = 1000
PREFILL_BUDGET_S = 0.16
PACE_S = 50e-6
"""Seconds a prompt token takes: 1 s per 20,000."""
BLOCK_TOKENS = BLOCK_BYTES // BYTES_PER_TOKEN


def prompt(*blocks: int) -> PromptPrefix:
    return PromptPrefix(len(blocks) * BLOCK_BYTES, blocks, 0)


class Ingress:
    """Replicas whose pace of prefill is known, and one clock."""

    def __init__(self, *ids: str) -> None:
        self.now = 100.0
        self.among = ReplicaSet(clock=lambda: self.now)
        self.among.update(where(*ids))
        for number, _ in enumerate(ids):
            self.end(self.send(prompt(900 + number), paced=True))

    def send(
        self, asked: PromptPrefix | None, *, streamed: bool = True, tokens: int = 0, paced: bool = False
    ) -> Reservation:
        tokens = tokens or len(asked.blocks if asked is not None else ()) * BLOCK_TOKENS
        budget_s = PREFILL_BUDGET_S if streamed else 0.0
        slot = self.among.take(LIMIT, tokens, budget_s, prefix=asked)
        assert slot is not None
        if paced:
            self.now += tokens * PACE_S
        return slot

    def end(self, slot: Reservation) -> str:
        self.among.note_first_byte(slot)
        self.among.release(slot)
        return slot.replica.replica_id


@pytest.mark.parametrize("streamed", [True, False])
def test_the_next_turn_goes_where_the_one_before_it_was(streamed: bool) -> None:
    ingress = Ingress("a", "b", "c")
    went = ingress.end(ingress.send(prompt(1, 2, 3), streamed=streamed))

    for turn in range(4, 9):
        assert ingress.end(ingress.send(prompt(*range(1, turn + 1)), streamed=streamed)) == went


def test_only_what_is_not_held_counts_as_load() -> None:
    ingress = Ingress("a", "b")
    ingress.end(ingress.send(prompt(1, 2, 3)))

    slot = ingress.send(prompt(1, 2, 3, 4))
    assert slot.pending_prompt_tokens == BLOCK_TOKENS
    assert slot.replica.pending_prompt_tokens == BLOCK_TOKENS
    assert slot.expected.size == 3 * BLOCK_BYTES
    whole = ingress.send(prompt(1, 2, 3))
    assert whole.pending_prompt_tokens == 1  # the last token is always computed


@pytest.mark.parametrize("streamed", [True, False])
def test_a_hot_prefix_spreads_where_waiting_costs_more_than_prefilling(streamed: bool) -> None:
    """Five blocks are held on one replica; each request brings a sixth of its own, and none is answered."""
    ingress = Ingress("a", "b", "c", "d")
    ingress.end(ingress.send(prompt(1, 2, 3, 4, 5), streamed=streamed))

    slots = [ingress.send(prompt(1, 2, 3, 4, 5, 100 + n), streamed=streamed) for n in range(200)]

    counts = [sum(slot.replica.replica_id == name for slot in slots) for name in "abcd"]
    assert max(counts) <= 1.5 * len(slots) / 4
    # Each replica had to prefill it once.
    assert sum(slot.pending_prompt_tokens > BLOCK_TOKENS for slot in slots) == 3


def test_a_salted_prompt_finds_nothing_of_another() -> None:
    """Salts change every hash; see `prompt_prefix`."""
    ingress = Ingress("a", "b")
    ingress.end(ingress.send(prompt(1, 2, 3)))

    assert ingress.send(prompt(51, 52, 53)).expected.size == 0


def test_traffic_without_shared_prefixes_is_picked_by_load() -> None:
    known, unknown = Ingress("a", "b", "c"), Ingress("a", "b", "c")
    unknown.among.sharing = known.among.sharing
    picked = []
    for number in range(200):
        tokens = 100 + number * 37 % 900
        one = known.send(prompt(*range(1000 + 9 * number, 1003 + 9 * number)), tokens=tokens)
        other = unknown.send(None, tokens=tokens)
        assert one.replica.replica_id == other.replica.replica_id
        picked.append((known, one))
        picked.append((unknown, other))
        if number % 3 == 2:
            for ingress, slot in picked[: len(picked) // 2 * 2 // 2]:
                ingress.now += 0.01
                ingress.end(slot)
            picked = picked[len(picked) // 2 * 2 // 2 :]
    assert known.among.sharing < 0.05


def test_what_the_engine_found_corrects_what_is_expected() -> None:
    ingress = Ingress("a")
    asked = prompt(1, 2, 3)
    ingress.end(ingress.send(asked))
    slot = ingress.send(asked)
    assert ingress.among.expected_tokens(slot) == 3 * BLOCK_TOKENS

    ingress.among.learn(slot, 0, 3 * BLOCK_TOKENS)

    assert ingress.send(prompt(900)).expected.size == 0  # older than what was gone
