"""Greedy streams that run together, and what a client has of each."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from itertools import groupby

from tests.integration.sse import RawStream


def greedy_streams(
    port: int, model: str, disturb: Callable[[], object] = lambda: None, tokens: int = 600
) -> list[bytes]:
    """Return the answers of streams that run together. `disturb` is called while all of them do."""
    more = {"ignore_eos": True, "stream_options": {"include_usage": True}}
    body = {"model": model, "max_tokens": tokens, **more}
    return _streams(port, "/v1/chat/completions", body, (b'"content":"', b"data: [DONE]\n\n"), disturb)


def message_streams(
    port: int, model: str, disturb: Callable[[], object] = lambda: None, tokens: int = 600
) -> list[bytes]:
    """As `greedy_streams`, in Anthropic's API."""
    marks = (b'"text_delta"', b'data: {"type":"message_stop"}\n\n')
    return _streams(port, "/v1/messages", {"model": model, "max_tokens": tokens}, marks, disturb)


def _streams(
    port: int, path: str, body: dict[str, object], marks: tuple[bytes, bytes], disturb: Callable[[], object]
) -> list[bytes]:
    """Run six streams at `path`. `marks` are in the first event with a token, and at the end."""
    begun, ended = marks
    with ExitStack() as stack:
        streams = []
        for subject in ("sea", "moon", "rain", "harbour", "winter", "fox"):
            messages = [{"role": "user", "content": f"A long story about the {subject}."}]
            asked = {**body, "messages": messages, "temperature": 0, "stream": True}
            streams.append(stack.enter_context(RawStream(port, path, asked)))
        for stream in streams:
            stream.until(begun)
        disturb()
        return [stream.until(ended) for stream in streams]


def message(answer: bytes) -> tuple[list[str], str, dict[str, object]]:
    """Return the names of a stream's events without repetitions, its text, and how it ended."""
    events = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith(b"data: {")]
    kinds = [kind for kind, _ in groupby(event["type"] for event in events)]
    text = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
    (end,) = (event for event in events if event["type"] == "message_delta")
    return kinds, text, {**end["delta"], "output_tokens": end["usage"]["output_tokens"]}


def moves(answer: bytes) -> int:
    """Return how often a stream moved to another replica."""
    return answer.count(b": continued on another replica after ")


def pieces(answer: bytes) -> tuple[str, list[str], int]:
    """Return the text of an answer, its finish reasons, and its tokens by its usage.

    Fails unless all events belong to one answer.
    """
    events = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith(b"data: {")]
    choices = [choice for event in events for choice in event["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    (usage,) = (event["usage"] for event in events if event.get("usage"))
    assert len({(event["id"], event["created"]) for event in events}) == 1
    assert sum("role" in choice["delta"] for choice in choices) == 1
    return text, reasons, usage["completion_tokens"]
