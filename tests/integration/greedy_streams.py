"""Greedy streams that run together, and what a client has of each."""

import json
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import cycle, groupby, islice, product
from typing import Any

from tests.integration.sse import RawStream, unchunked

END = b"\r\n0\r\n\r\n"
"""The end of a body in chunks."""
SUBJECTS = ("sea", "moon", "rain", "harbour", "winter", "fox")


def pieces(answer: bytes) -> tuple[str, list[str], int]:
    """Return the text of an answer, its finish reasons, and its tokens by its usage.

    Fails unless all events belong to one answer.
    """
    events = events_of(answer)
    choices = [choice for event in events for choice in event["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    (usage,) = (event["usage"] for event in events if event.get("usage"))
    assert len({(event["id"], event["created"]) for event in events}) == 1
    assert sum("role" in choice["delta"] for choice in choices) == 1
    return text, reasons, usage["completion_tokens"]


def message(answer: bytes) -> tuple[list[str], str, dict[str, object]]:
    """Return the names of a stream's events without repetitions, its text, and how it ended."""
    events = [event for event in events_of(answer) if event["type"] != "ping"]
    text = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
    (end,) = (event for event in events if event["type"] == "message_delta")
    return kinds(events), text, {**end["delta"], "output_tokens": end["usage"]["output_tokens"]}


def response(answer: bytes) -> tuple[list[str], str, dict[str, object]]:
    """Return the same of a stream of Responses. Fails unless its events name one item."""
    events = [event for event in events_of(answer) if event["type"] != "keepalive"]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    text = "".join(event["delta"] for event in deltas)
    end = events[-1]["response"]
    (item,) = end["output"]
    assert item["content"][0]["text"] == text
    assert {event["item_id"] for event in deltas} == {item["id"]}
    assert len({event["response"]["id"] for event in events if "response" in event}) == 1
    return kinds(events), text, {"status": end["status"], "output_tokens": end["usage"]["output_tokens"]}


@dataclass(frozen=True, slots=True)
class Api:
    """An API that clients speak: its path, its names of fields, and how to read an answer.

    `begun` is in the first event with a token.
    """

    path: str
    prompt: str
    bound: str
    begun: bytes
    read: Callable[[bytes], object]
    more: dict[str, object] = field(default_factory=dict)


CHAT = Api(
    "/v1/chat/completions",
    "messages",
    "max_tokens",
    b'"content":"',
    pieces,
    {"ignore_eos": True, "stream_options": {"include_usage": True}},
)
MESSAGES = Api("/v1/messages", "messages", "max_tokens", b'"text_delta"', message)
RESPONSES = Api("/v1/responses", "input", "max_output_tokens", b"output_text.delta", response)


def greedy_streams(
    port: int,
    model: str,
    disturb: Callable[[], object] = lambda: None,
    tokens: int = 600,
    apis: Sequence[Api] = (CHAT,),
    count: int = len(SUBJECTS),
) -> list[bytes]:
    """Return the bodies of `count` streams of each API that run together, one API after the other.

    `disturb` is called while all of them run.
    """
    with ExitStack() as stack:
        streams = []
        for api, subject in product(apis, islice(cycle(SUBJECTS), count)):
            asked = [{"role": "user", "content": f"A long story about the {subject}."}]
            body = {"model": model, api.prompt: asked, api.bound: tokens, "temperature": 0, "stream": True}
            stream = stack.enter_context(RawStream(port, api.path, {**body, **api.more}))
            streams.append((api, stream))
        for api, stream in streams:
            stream.until(api.begun)
        disturb()
        return [unchunked(stream.until(END)) for _, stream in streams]


def events_of(answer: bytes) -> list[dict[str, Any]]:
    """Return the data of a stream's events."""
    return [json.loads(line[6:]) for line in answer.splitlines() if line.startswith(b"data: {")]


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """Return the names of events without repetitions."""
    return [kind for kind, _ in groupby(event["type"] for event in events)]


def pauses_s(answer: bytes) -> list[float]:
    """Return how long each move to another replica took."""
    return [
        float(found) for found in re.findall(rb": continued on another replica after ([0-9.]+) s", answer)
    ]


def moves(answer: bytes) -> int:
    """Return how often a stream moved to another replica."""
    return answer.count(b": continued on another replica after ")
