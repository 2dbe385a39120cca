import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from serve_app.api.dialect import ColdWait
from serve_app.cli.ask_answer import Answer, Event, ShownTrace, read_events
from serve_app.cli.ask_display import Piece, Wait


def taken(*choices: dict[str, Any] | None, **more: Any) -> tuple[Answer, list[Piece | None]]:
    """An answer of these choices, an event each, 0.1 s apart."""
    answer = Answer("tide")
    pieces = []
    for number, choice in enumerate(choices, 1):
        document = {"choices": [] if choice is None else [choice], **(more if number == len(choices) else {})}
        pieces.append(answer.take(json.dumps(document), number / 10))
    return answer, pieces


def delta(**content: Any) -> dict[str, Any]:
    return {"index": 0, "delta": content}


@pytest.mark.parametrize(
    ("choices", "pieces", "text", "reasoning"),
    [
        # Half a character is a token. The event with the role is none.
        (
            [delta(role="assistant", content=""), delta(content=""), delta(content="é"), delta(), None],
            [None, Piece(""), Piece("é"), None, None],
            "é",
            "",
        ),
        ([{"text": "a"}, {"text": "b", "finish_reason": "stop"}], [Piece("a"), Piece("b")], "ab", ""),
        *(
            (
                [delta(role="assistant", content=None, **{key: "hm"}), delta(content="yes", **{key: ""})],
                [Piece("hm", reasoning=True), Piece("yes")],
                "yes",
                "hm",
            )
            for key in ("reasoning_content", "reasoning")
        ),
    ],
)
def test_each_token_is_a_piece_of_text_or_reasoning(
    choices: list[dict[str, Any] | None], pieces: list[Piece | None], text: str, reasoning: str
) -> None:
    answer, found = taken(*choices)

    assert (found, answer.text, answer.reasoning) == (pieces, text, reasoning)
    assert answer.tokens == sum(piece is not None for piece in pieces)


A, B, C = (delta(content=text) for text in "abc")
COLD = {"cold_wait_ms": 17_400.0, "ttft_ms": 17_420.5, "inter_token_ms": 2.214, "tokens_per_second": 2.74}
WARM = {"cold_wait_ms": 0.0, "ttft_ms": 12.6, "inter_token_ms": 0.0, "tokens_per_second": 79.4}
MEASURED = "1 token, TTFT 100 ms, 10 tokens/s (measured here)"


@pytest.mark.parametrize(
    ("choices", "more", "figures"),
    [
        (
            [A, None],
            {"usage": {"completion_tokens": 48}, "latency": COLD},
            "48 tokens, TTFT 17.4 s, cold wait 17.4 s, ITL 2.21 ms, 2.74 tokens/s",
        ),
        (
            [A],
            {"usage": {"completion_tokens": 1}, "latency": WARM},
            "1 token, TTFT 12.6 ms, no cold wait, 79.4 tokens/s",
        ),
        ([A, B, C], {}, "3 tokens, TTFT 100 ms, ITL 100 ms, 10 tokens/s (measured here)"),
        ([A], {"usage": 3}, MEASURED),
        ([A], {"latency": [1]}, MEASURED),
        ([A], {"usage": {"completion_tokens": "many"}}, MEASURED),
        ([A], {"latency": {"ttft_ms": None}}, MEASURED),
    ],
)
def test_figures_are_the_servers_or_measured_here(
    choices: list[dict[str, Any] | None], more: dict[str, Any], figures: str
) -> None:
    assert taken(*choices, **more)[0].figures() == f"tide: {figures}"


@pytest.mark.parametrize("given", ["", "{", "[]", "7", "{}", '{"choices": {}}'])
def test_what_is_no_completion_is_an_error(given: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of two kinds, and no caller reads the words
        Answer("tide").take(given, 0.0)


STREAM = (
    ": waiting for a replica of a b: phase=imports eta_s=13 waited_s=5\n\n"
    'data: {"text":"Küste"}\n\n'
    "event: error\ndata: {1}\n\n"
    ": a comment of somebody else's\n\n"
    "data: one\ndata: two\n\n"
    "event: nothing\n\n"
    "id: 7\ndata:[DONE]\n\n"
).encode()
FOUND = [
    Wait("imports", 13, 5),
    Event("", '{"text":"Küste"}'),
    Event("error", "{1}"),
    Event("", "one\ntwo"),
    Event("", "[DONE]"),
]


async def events_of(stream: bytes, places: Sequence[int] = ()) -> list[Event | Wait | ShownTrace]:
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]

    async def blocks() -> AsyncIterator[bytes]:
        for begin, end in pairwise(edges):
            yield stream[begin:end]

    return [event async for event in read_events(blocks())]


@given(st.lists(st.integers(0, 2000), max_size=12))
@example(range(2000))
def test_events_are_found_wherever_the_bytes_are_cut(places: Sequence[int]) -> None:
    assert asyncio.run(events_of(STREAM, places)) == FOUND
    assert asyncio.run(events_of(STREAM.replace(b"\n", b"\r\n"), places)) == FOUND
    assert asyncio.run(events_of(b"data: [DONE]\n", places)) == []  # its empty line has not come


@pytest.mark.parametrize(
    ("told", "read"),
    [
        (ColdWait("tide", "imports", 12.2, 5.7), Wait("imports", 13, 5)),
        (ColdWait("org/tide:v1", "pending_capacity", None, 0.0), Wait("pending_capacity", None, 0)),
        (ColdWait("tide", "rollout_failed", None, 5.0, "no model"), Wait("rollout_failed", None, 5)),
    ],
)
async def test_the_servers_own_comments_are_understood(told: ColdWait, read: Wait) -> None:
    assert await events_of(told.comment()) == [read]


@pytest.mark.parametrize("eta", ["soon", "-1", "٣", "1e9", "9" * 40])
async def test_an_eta_that_is_no_number_is_unknown(eta: str) -> None:
    comment = f": phase=busy eta_s={eta} waited_s=1\n\n".encode()

    assert await events_of(comment) == [Wait("busy", None, 1)]
