from __future__ import annotations

import json

import pytest

from benchmarks.serving_overhead.sse import SseScanner, StreamError, has_content


def chunk(delta: object, finish: str | None = None, **more: object) -> str:
    choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
    return json.dumps({"id": "chatcmpl-1", "choices": choices, **more}, separators=(",", ":"))


USAGE = json.dumps({"id": "chatcmpl-1", "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}})
FRAMES = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"content": "The"}),
    chunk({"content": ' "content":"" '}),
    chunk({"content": ""}, finish="length"),
    USAGE,
    "[DONE]",
]
STREAM = "".join(f"data: {frame}\n\n" for frame in FRAMES).encode()


def scan(*pieces: bytes) -> SseScanner:
    """Piece n arrives at second n."""
    scanner = SseScanner()
    for now, piece in enumerate(pieces):
        scanner.feed(piece, float(now))
    return scanner


@pytest.mark.parametrize(
    ("delta", "expected"),
    [
        ({"content": "a"}, True),
        ({"content": " "}, True),
        ({"content": '"'}, True),
        ({"role": "assistant", "content": ""}, False),
        ({"role": "assistant", "content": None}, False),
        ({"reasoning_content": "a"}, False),
        ({}, False),
    ],
)
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_only_non_empty_text_counts_as_content(
    delta: dict[str, object], expected: bool, separators: tuple[str, str]
) -> None:
    frame = b"data: " + json.dumps({"choices": [{"delta": delta}]}, separators=separators).encode()

    assert has_content(frame) is expected


def test_text_that_quotes_the_pattern_is_not_mistaken_for_it() -> None:
    assert not has_content(b'data: {"choices":[{"delta":{"refusal":"\\"content\\":\\"x\\""}}]}')


@pytest.mark.parametrize("size", [*range(1, 40), 100, 333, len(STREAM)])
def test_a_stream_cut_into_pieces_of_any_size_reads_the_same(size: int) -> None:
    scanner = scan(*(STREAM[at : at + size] for at in range(0, len(STREAM), size)))

    assert scanner.completion_tokens() == 3
    assert scanner.done


def test_first_token_is_the_first_text_and_last_token_the_finishing_frame() -> None:
    pieces = [f"data: {frame}\n\n".encode() for frame in FRAMES]

    scanner = scan(*pieces)

    assert scanner.first_content_at == 1.0  # Not the role-only frame at 0.
    assert scanner.last_token_at == 3.0  # Not the usage frame at 4.
    assert scanner.longest_gap_s == 1.0


def test_frames_that_come_together_are_one_arrival() -> None:
    first, second = (f"data: {FRAMES[n]}\n\n".encode() for n in (1, 2))

    assert scan(first + second).arrivals == 1
    assert scan(first, second).arrivals == 2


def test_a_frame_counts_when_its_last_byte_arrives() -> None:
    first = f"data: {FRAMES[1]}\n\n".encode()

    scanner = scan(first[:-1], first[-1:])

    assert scanner.first_content_at == 1.0


def test_carriage_returns_and_keep_alive_comments_are_skipped() -> None:
    stream = b": loading, about 4 s\r\n\r\n: still\r\n" + STREAM.replace(b"\n", b"\r\n")

    scanner = scan(*(stream[at : at + 1] for at in range(len(stream))))

    assert scanner.completion_tokens() == 3


def test_an_error_event_fails_the_reply_with_what_was_received() -> None:
    error = b'event: error\ndata: {"error":{"message":"the replica died"}}\n\n'

    with pytest.raises(StreamError, match="the replica died"):
        scan(STREAM[:300], STREAM[300:350] + b"\n\n" + error + b"data: [DONE]\n\n").completion_tokens()


def test_a_plain_error_frame_fails_the_reply_too() -> None:
    with pytest.raises(StreamError, match="too long"):
        scan(b'data: {"error":{"message":"too long"}}\n\ndata: [DONE]\n\n').completion_tokens()


def test_a_stream_without_its_end_is_not_complete() -> None:
    with pytest.raises(StreamError, match=r"without \[DONE\]"):
        scan(STREAM.removesuffix(b"data: [DONE]\n\n")).completion_tokens()


def test_a_stream_without_usage_is_not_complete() -> None:
    with pytest.raises(StreamError, match="completion_tokens"):
        scan(STREAM.replace(b'"usage"', b'"ignored"')).completion_tokens()
