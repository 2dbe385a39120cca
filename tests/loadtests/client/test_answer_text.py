"""The text of an answer, from the frames that the scanner kept."""

import json
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from loadtests.client.sse import Scanner, answer_text


def frame(delta: Mapping[str, Any], index: int = 0) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": index, "delta": delta}]}).encode() + b"\n\n"


async def text_of(data: bytes, cut: int = 7) -> str:
    scanner = Scanner("chat", keep=True)
    for start in range(0, len(data), cut):
        scanner.feed(data[start : start + cut], 1.0)
    assert scanner.kept is not None
    return await answer_text(scanner.kept)


@given(st.lists(st.text(), max_size=40), st.integers(1, 60))
async def test_the_text_is_what_the_pieces_said(texts: list[str], cut: int) -> None:
    data = b"".join(frame({"content": text}) for text in texts) + b"data: [DONE]\n\n"

    assert await text_of(data, cut) == "".join(texts)


async def test_a_piece_after_a_comment_and_one_with_a_role_are_part_of_it() -> None:
    data = frame({"role": "assistant", "content": "Hi"}) + b": waiting {now}\n" + frame({"content": " you"})

    assert await text_of(data) == "Hi you"


async def test_reasoning_other_choices_and_what_is_no_json_are_not() -> None:
    data = frame({"reasoning_content": "hm"}) + frame({"content": "no"}, index=1) + frame({"content": "yes"})

    assert await text_of(data + b'data: {"content":"half\n\n') == "yes"


async def test_a_long_answer_is_whole() -> None:
    texts = [f" {number}" for number in range(1000)]

    assert await text_of(b"".join(frame({"content": text}) for text in texts), 4096) == "".join(texts)


def test_nothing_is_kept_unless_asked_for() -> None:
    scanner = Scanner("chat")
    scanner.feed(frame({"content": "a"}), 1.0)

    assert (len(scanner.pieces), scanner.kept) == (1, None)
