"""What became of conversations."""

from typing import Any

from loadtests.conversations import Conversations, conversations
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
