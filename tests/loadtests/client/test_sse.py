import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.client.sse import Scanner
from serve_app.api.dialect import ColdWait
from serve_app.api.errors import ApiError

DONE = b"data: [DONE]\n\n"


def frame(document: dict[str, Any], *, tight: bool = True) -> bytes:
    return f"data: {json.dumps(document, separators=(',', ':') if tight else None)}\n\n".encode()


def completion(text: str, **more: Any) -> dict[str, Any]:
    return {"id": "cmpl-1", "choices": [{"index": 0, "text": text, "finish_reason": None}], **more}


def chat(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": delta, "finish_reason": None}], **more}


USAGE = {
    "id": "cmpl-1",
    "choices": [],
    "usage": {"prompt_tokens": 14, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}},
    "latency": {"ttft_ms": 12.6, "cold_wait_ms": 2500.0},
}


def scanned(data: bytes, api: str = "completions") -> Scanner:
    scanner = Scanner(api)
    scanner.feed(data, 1.0)
    return scanner


@pytest.mark.parametrize("tight", [True, False])
def test_each_frame_with_text_is_a_piece(tight: bool) -> None:
    scanner = Scanner("completions")
    scanner.feed(frame(completion(" a"), tight=tight), 1.0)
    scanner.feed(frame(completion(" b"), tight=tight) + frame(completion(" c"), tight=tight), 2.0)
    scanner.feed(frame(USAGE, tight=tight) + DONE, 3.0)
    assert list(scanner.pieces) == [1.0, 2.0, 2.0]
    assert (scanner.done, scanner.over_s, scanner.error) == (True, 3.0, "")


def test_a_token_that_ends_within_a_character_is_a_piece() -> None:
    assert len(scanned(frame(completion(""))).pieces) == 1
    assert len(scanned(frame(chat({"content": ""})), "chat").pieces) == 1


def test_the_opening_frame_of_a_chat_is_no_piece() -> None:
    scanner = scanned(frame(chat({"role": "assistant", "content": ""})), "chat")
    scanner.feed(frame(chat({"content": "Hi"})), 2.0)
    scanner.feed(frame({"choices": [{"delta": {}, "finish_reason": "length"}]}), 3.0)
    assert list(scanner.pieces) == [2.0]


@pytest.mark.parametrize("delta", [{"reasoning": "so"}, {"content": None, "reasoning_content": "so"}])
def test_reasoning_is_generated_text(delta: dict[str, Any]) -> None:
    assert len(scanned(frame(chat(delta)), "chat").pieces) == 1


def test_keys_within_text_are_text() -> None:
    text = 'say "content": "x", "error": 1 and data: [DONE]\n\n: phase=done'
    scanner = scanned(frame(chat({"content": text})), "chat")
    assert (len(scanner.pieces), scanner.error, scanner.done, scanner.phases) == (1, "", False, [])


def test_the_usage_has_tokens_and_the_cold_wait() -> None:
    usage = scanned(frame(completion("a")) + frame(USAGE) + DONE).usage()
    assert (usage.prompt_tokens, usage.output_tokens, usage.cached_tokens) == (14, 3, 8)
    assert usage.cold_wait_s == 2.5


def test_usage_details_may_be_null_or_missing() -> None:
    given = {"prompt_tokens": 14, "completion_tokens": 3, "prompt_tokens_details": None}
    usage = scanned(frame({"choices": [], "usage": given}) + DONE).usage()
    assert (usage.prompt_tokens, usage.output_tokens, usage.cached_tokens) == (14, 3, None)
    assert usage.cold_wait_s is None
    nothing = scanned(frame(completion("a")) + DONE).usage()
    assert (nothing.prompt_tokens, nothing.output_tokens) == (None, None)


def test_cached_tokens_are_read_from_the_latency_field_where_usage_has_none() -> None:
    document = {**USAGE, "usage": {"prompt_tokens": 14}, "latency": {"cached_tokens": 12}}
    assert scanned(frame(document) + DONE).usage().cached_tokens == 12


def test_usage_that_comes_with_the_last_token_is_found() -> None:
    last = completion("a", usage={"prompt_tokens": 2, "completion_tokens": 1})
    assert scanned(frame(last) + DONE).usage().output_tokens == 1


def test_our_own_error_event_is_an_error_and_not_an_end() -> None:
    error = ApiError(502, "the engine replica was lost", code="replica_lost")
    scanner = scanned(frame(completion("a")) + error.last_frames())
    assert scanner.error == "replica_lost: the engine replica was lost"
    assert (len(scanner.pieces), scanner.done, scanner.over_s) == (1, False, 1.0)


def test_comments_give_phases_and_the_wait() -> None:
    scanner = Scanner("completions")
    for at, phase, waited in [(1.0, "imports", 5.2), (2.0, "imports", 10.2), (3.0, "warm_up", 15.2)]:
        scanner.feed(ColdWait("org/tide", phase, None, waited).comment(), at)
    scanner.feed(frame(completion("a")) + DONE, 4.0)
    assert scanner.phases == [(1.0, "imports"), (3.0, "warm_up")]
    assert scanner.waited_s == 15.0
    assert scanner.done


def test_a_comment_and_a_piece_in_one_frame() -> None:
    scanner = scanned(b": phase=imports waited_s=5\n" + frame(completion("a")))
    assert ([phase for _, phase in scanner.phases], len(scanner.pieces)) == (["imports"], 1)


STREAM = b"".join(
    [
        b": waiting for a replica of t: phase=imports eta_s=unknown waited_s=5\n\n",
        frame(completion(' "a"\n')),
        frame(completion("")),
        frame(completion("ü"), tight=False),
        frame(USAGE),
        DONE,
    ]
)


@given(cuts=st.lists(st.integers(0, len(STREAM)), max_size=40), crlf=st.booleans())
def test_frames_may_be_cut_anywhere(cuts: list[int], crlf: bool) -> None:
    scanner, whole = Scanner("completions"), scanned(STREAM)
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(STREAM)], strict=True):
        part = STREAM[start:end]
        scanner.feed(part.replace(b"\n", b"\r\n") if crlf else part, 1.0)
    assert scanner.pieces == whole.pieces
    assert (scanner.phases, scanner.waited_s, scanner.done) == (whole.phases, 5.0, True)
    assert scanner.usage().output_tokens == 3


@pytest.mark.parametrize(
    "usage",
    [
        '{"usage": {"prompt_tokens": -5, "completion_tokens": 1' + "0" * 40 + "}}",
        '{"usage": 1, "latency": {"cold_wait_ms": 1e999}}',
        '{"usage": 1, "latency": {"cold_wait_ms": 1' + "0" * 400 + "}}",
        '{"usage":' + "[" * 100_000,
    ],
)
def test_impossible_counts_are_dropped(usage: str) -> None:
    """Each of these has ended a client, with all its open requests."""
    told = scanned(f"data: {usage}\n\n".encode() + DONE).usage()
    assert (told.prompt_tokens, told.output_tokens, told.cold_wait_s) == (None, None, None)
