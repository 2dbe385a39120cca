"""Conversations of a run, and the prompt tokens found in prefix caches."""

from typing import Any

from loadtests.conversations import Conversations, conversations, known_tokens, prompt_cache
from loadtests.record import Record
from tests.loadtests import samples


def turn(session: int, number: int, **fields: Any) -> Record:
    return samples.record(10 * session + number, session=session, turn=number, **fields)


def test_each_conversation_counts_once_by_why_it_ended() -> None:
    records = [
        samples.record(0),
        turn(1, 1, next_at_s=5.0),
        turn(1, 2, conversation_end="whole"),
        turn(2, 1, conversation_end="context"),
        turn(3, 1, conversation_end="time"),
        turn(4, 1, conversation_end="unanswered", outcome="failed"),
        turn(5, 1, next_at_s=9.0),
    ]

    assert conversations(records) == Conversations(
        5, 6, whole=1, context=1, time=1, unanswered=1, cut_short=1
    )


def test_a_run_without_conversations_has_none() -> None:
    assert conversations([samples.record(0)]) is None


def asked(index: int, at_s: float, **fields: Any) -> Record:
    """A request with a shared prefix of 100 tokens, answered within a second."""
    given = {
        "planned_prompt_tokens": 120,
        "prompt_tokens": 120,
        "output_tokens": 50,
        "planned_prefix_tokens": 100,
    }
    return samples.record(index, at_s, (at_s + 0.5, at_s + 0.9), sent_s=at_s, **(given | fields))


def cached_turn(session: int, number: int, at_s: float, **fields: Any) -> Record:
    return asked(10 * session + number, at_s, session=session, turn=number, **fields)


def test_the_cached_share_needs_reported_tokens() -> None:
    told = samples.record(0, prompt_tokens=100, cached_tokens=75)
    untold = samples.record(1, prompt_tokens=1000)

    found = prompt_cache([told, untold])

    assert found is not None
    assert (found.requests, found.prompt_tokens, found.cached_tokens, found.cached_share) == (
        1,
        100,
        75,
        0.75,
    )
    assert found.infinite_cache_tokens is None  # Nothing is shared by plan.


def test_a_prefix_is_known_from_the_first_token_after_it() -> None:
    records = [
        asked(0, 0.0),
        asked(1, 0.4),  # Before the first token of the other.
        asked(2, 0.6),
        asked(3, 0.7, prefix=1),
        asked(4, 0.7, kind="other"),
        asked(5, 0.7, model="other"),
        asked(6, 9.0, prefix=1),
    ]

    assert known_tokens(records) == {0: 0, 1: 0, 2: 100, 3: 0, 4: 0, 5: 0, 6: 100}


def test_a_prefix_is_as_much_longer_than_planned_as_its_whole_prompt() -> None:
    records = [asked(0, 0.0), asked(1, 1.0, prompt_tokens=180)]

    assert known_tokens(records)[1] == 150


def test_a_later_turn_knows_the_prompt_and_the_answer_before_it() -> None:
    records = [
        cached_turn(1, 1, 0.0),
        cached_turn(1, 2, 5.0, prompt_tokens=200),
        cached_turn(1, 3, 10.0, prompt_tokens=280),
    ]

    assert list(known_tokens(records).values()) == [0, 170, 250]


def test_a_conversation_begins_with_the_prefix_of_another_of_its_group() -> None:
    records = [
        cached_turn(1, 1, 0.0),
        cached_turn(2, 1, 3.0, prefix=1),
        cached_turn(3, 1, 3.0),
        cached_turn(3, 2, 9.0, prompt_tokens=200),
    ]

    found = prompt_cache(records)

    assert found is not None
    assert found.infinite_cache_tokens == 100 + 170
    assert found.infinite_cache_share == 270 / 560
