import json
from typing import Any

import pytest

from serve_app.cli.ask.answer import Answer, Piece


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


def test_the_opening_of_a_chat_is_no_token_and_half_a_character_is_one() -> None:
    answer, pieces = taken(
        delta(role="assistant", content=""), delta(content=""), delta(content="é"), delta(), None
    )

    assert pieces == [None, Piece(""), Piece("é"), None, None]
    assert (answer.text, answer.pieces, answer.tokens) == ("é", 2, 2)
    assert (answer.first_s, answer.last_s) == (0.2, 0.3)


def test_completions_have_their_text_in_the_choice() -> None:
    answer, _ = taken({"text": "a"}, {"text": "b", "finish_reason": "stop"})

    assert (answer.text, answer.finish_reason) == ("ab", "stop")


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_is_kept_apart(key: str) -> None:
    answer, pieces = taken(
        delta(role="assistant", content=None, **{key: "hm"}), delta(content="yes", **{key: ""})
    )

    assert pieces == [Piece("hm", reasoning=True), Piece("yes")]
    assert (answer.reasoning, answer.text) == ("hm", "yes")


def test_the_figures_are_the_servers() -> None:
    latency = {
        "cold_wait_ms": 17_400.0,
        "ttft_ms": 17_420.5,
        "inter_token_ms": 2.214,
        "total_time_ms": 17_500.0,
        "tokens_per_second": 2.74,
    }

    answer, _ = taken(delta(content="a"), None, usage={"completion_tokens": 48}, latency=latency)

    assert answer.figures() == "tide: 48 tokens, TTFT 17.4 s, cold wait 17.4 s, ITL 2.21 ms, 2.74 tokens/s"


def test_a_warm_answer_of_one_token_has_no_cold_wait_and_no_time_between_tokens() -> None:
    latency = {"cold_wait_ms": 0.0, "ttft_ms": 12.6, "inter_token_ms": 0.0, "tokens_per_second": 79.4}

    answer, _ = taken(delta(content="a"), usage={"completion_tokens": 1}, latency=latency)

    assert answer.figures() == "tide: 1 token, TTFT 12.6 ms, no cold wait, 79.4 tokens/s"


def test_of_another_server_the_times_are_those_seen_from_here() -> None:
    answer, _ = taken(delta(content="a"), delta(content="b"), delta(content="c"))

    assert answer.figures() == "tide: 3 tokens, TTFT 100 ms, ITL 100 ms, 10 tokens/s (measured here)"


@pytest.mark.parametrize("given", ["", "{", "[]", "7", "{}", '{"choices": {}}'])
def test_what_is_no_completion_is_an_error(given: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of two kinds, and no caller reads the words
        Answer("tide").take(given, 0.0)


@pytest.mark.parametrize(
    "more",
    [
        {"usage": 3},
        {"latency": [1]},
        {"usage": {"completion_tokens": "many"}},
        {"latency": {"ttft_ms": None}},
    ],
)
def test_odd_figures_are_left_out(more: dict[str, Any]) -> None:
    answer, _ = taken(delta(content="a"), **more)

    assert answer.figures() == "tide: 1 token, TTFT 100 ms, 10 tokens/s (measured here)"
