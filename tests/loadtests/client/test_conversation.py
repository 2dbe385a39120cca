"""Conversations against a server whose answers are known to the byte."""

import asyncio
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from loadtests.client.drive import drive, drive_closed
from loadtests.client.request import TEMPLATE_TOKENS, expected_tokens, with_next_turn
from loadtests.plan import Planned
from loadtests.record import Record
from loadtests.scenario import Client, Closed
from tests.loadtests import samples
from tests.loadtests.client.driving import WAIT_S, planned, target
from tests.loadtests.client.raw import DONE, HEAD, LAST, Answer, Asked, Raw, chunk, raw_server

SAID = ('Sure: "a\nb"', " Küste ", "\ud800", "😀")
"""Pieces of an answer, one of them half a surrogate pair."""


def conversation(first: int, *thinks_s: float, **given: Any) -> Planned:
    """A first turn and one more after each of the pauses."""
    fields = {"api": "chat", "prompt_tokens": 30, "prefix_tokens": 15, "session": first} | given
    following = None
    for place in range(len(thinks_s), 0, -1):
        think_s = thinks_s[place - 1]
        following = planned(
            first + place,
            turn=place + 1,
            think_s=think_s,
            following=following,
            **fields | {"history_tokens": 10},
        )
    return planned(first, turn=1, following=following, **fields)


def frame(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def answering(usage: dict[str, int] | None = None, end: bytes = DONE) -> Answer:
    """A server that says `SAID`."""

    async def answer(asked: Asked) -> None:
        role = frame({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        pieces = [frame({"choices": [{"index": 0, "delta": {"content": text}}]}) for text in SAID]
        last = frame({"choices": [], "usage": usage}) if usage else b""
        await asked.send(HEAD, *(chunk(part) for part in (role, *pieces, last + end)), LAST)

    return answer


async def driven(
    plan: Sequence[Planned],
    answer: Answer,
    *,
    until_s: float = math.inf,
    context_tokens: int | None = None,
    stop: Callable[[list[Record]], bool] = lambda _: False,
) -> tuple[list[Record], Raw]:
    """The records in the order of their indexes, once all is over; `stop` ends the run when it holds."""
    records: list[Record] = []
    stopping = asyncio.Event()

    def emit(record: Record) -> None:
        records.append(record)
        if stop(records):
            stopping.set()

    async with raw_server(answer) as raw:
        where = replace(target(raw.url), context_tokens={"tide": context_tokens})
        begin = time.monotonic() + 0.02
        async with asyncio.timeout(WAIT_S):
            await drive(plan, where, Client(), begin, emit, stopping, until_s=until_s)
    return sorted(records, key=lambda record: record.index), raw


def messages(asked: Asked) -> list[dict[str, str]]:
    found = json.loads(asked.body)["messages"]
    assert isinstance(found, list)
    return found


async def test_each_turn_sends_the_whole_history_with_the_answers_as_they_came() -> None:
    records, raw = await driven([conversation(0, 0.01, 0.01)], answering())

    first, second, third = map(messages, raw.asked)
    assert [one["role"] for one in third] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert third[: len(second)] == second
    assert second[: len(first)] == first
    assert {one["content"] for one in third if one["role"] == "assistant"} == {"".join(SAID)}
    assert len({one["content"] for one in third if one["role"] == "user"}) == 3
    assert [(record.index, record.turn, record.session) for record in records] == [
        (0, 1, 0),
        (1, 2, 0),
        (2, 3, 0),
    ]


async def test_a_turn_counts_from_when_its_reader_has_thought() -> None:
    records, _ = await driven([conversation(0, 0.2)], answering())

    first, second = records
    assert first.next_at_s == second.at_s == first.ended_s + 0.2
    assert 0 <= second.lag_s < WAIT_S
    assert (first.conversation_end, second.conversation_end) == ("", "whole")
    assert second.next_at_s is None


async def test_conversations_go_on_side_by_side_beside_requests_that_stand_alone() -> None:
    plan = [conversation(0, 0.05), conversation(10, 0.01, prefix=1), planned(20, api="chat")]

    records, raw = await driven(plan, answering())

    assert [record.index for record in records] == [0, 1, 10, 11, 20]
    assert records[-1].session is None
    assert records[-1].conversation_end == ""
    assert len({messages(asked)[0]["content"] for asked in raw.asked if len(messages(asked)) > 1}) == 2


@pytest.mark.parametrize(
    ("end", "outcome"), [(b"", "broken"), (b'data: {"error": {"message": "lost"}}\n\n', "broken")]
)
async def test_an_answer_that_does_not_come_whole_ends_the_conversation(end: bytes, outcome: str) -> None:
    [record], raw = await driven([conversation(0, 0.01)], answering(end=end))

    assert (record.outcome, record.conversation_end) == (outcome, "unanswered")
    assert len(raw.asked) == 1


async def test_a_history_that_would_exceed_the_context_ends_the_conversation() -> None:
    usage = {"prompt_tokens": 990, "completion_tokens": 4}

    [record], _ = await driven([conversation(0, 0.01)], answering(usage), context_tokens=1000)
    goes_on, _ = await driven([conversation(0, 0.01)], answering(usage))

    assert record.conversation_end == "context"
    assert len(goes_on) == 2


async def test_an_interrupted_run_ends_conversations_whose_reader_thinks() -> None:
    plan = [conversation(0, 3600.0), conversation(10, 3600.0)]

    records, _ = await driven(plan, answering(), stop=lambda records: len(records) == 2)

    assert [record.index for record in records] == [0, 10]
    assert all(record.next_at_s is not None for record in records)


async def test_a_stream_takes_the_next_conversation_after_the_last_turn() -> None:
    records: list[Record] = []
    plan = iter([conversation(0, 0.01), conversation(10, 0.01)])
    async with raw_server(answering()) as raw:
        how, where = Closed(streams=1, for_s=WAIT_S), target(raw.url)
        await drive_closed(how, plan, where, Client(), time.monotonic(), records.append, asyncio.Event())

    assert [record.index for record in records] == [0, 1, 10, 11]
    assert records[2].at_s >= records[1].ended_s


SECOND = planned(
    1, prompt_tokens=190, output_tokens=30, prefix_tokens=100, history_tokens=70, think_s=5.0, session=0
)
FIRST = planned(
    0, prompt_tokens=120, output_tokens=50, prefix_tokens=100, session=0, turn=1, following=SECOND
)


def ended(**fields: Any) -> Record:
    return samples.record(
        pieces_s=(1.0, 2.0), ended_s=10.0, **({"prompt_tokens": 120, "output_tokens": 50} | fields)
    )


def test_no_turn_begins_at_the_end_of_the_scenario() -> None:
    assert with_next_turn(ended(), FIRST, None, 15.0).conversation_end == "time"
    assert with_next_turn(ended(), FIRST, None, 15.1).next_at_s == 15.0


def test_a_turn_may_fill_the_context_and_not_exceed_it() -> None:
    fits = 120 + 50 + 20 + TEMPLATE_TOKENS + 30

    assert with_next_turn(ended(), FIRST, fits, math.inf).next_at_s == 15.0
    assert with_next_turn(ended(), FIRST, fits - 1, math.inf).conversation_end == "context"


def test_a_message_is_expected_as_long_as_the_prompt_before_tells() -> None:
    assert expected_tokens(ended(prompt_tokens=180), FIRST, SECOND) == 180 + 50 + 30 + TEMPLATE_TOKENS + 30
    assert expected_tokens(ended(prompt_tokens=60), FIRST, SECOND) == 60 + 50 + 20 + TEMPLATE_TOKENS + 30


def test_a_server_that_counts_nothing_is_taken_to_count_as_planned() -> None:
    untold = replace(ended(), prompt_tokens=None, output_tokens=None)

    assert expected_tokens(untold, FIRST, SECOND) == expected_tokens(ended(), FIRST, SECOND)
