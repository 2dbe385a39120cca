"""The record of a greedy stream, and when two streams differ."""

import json
from dataclasses import asdict, replace

import pytest

from benchmarks.chaos.greedy_chat import GreedyChat, differences
from benchmarks.chaos.trace import Stream

USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
ERROR = b'event: error\ndata: {"error":{"message":"gone","code":"replica_lost"}}\n\n'
DONE = b"data: [DONE]\n\n"


def event(delta: dict[str, str] | None, finish: str | None = None, **more: object) -> bytes:
    choices = [] if delta is None else [{"delta": delta, "finish_reason": finish, **more}]
    usage = {"usage": USAGE, "latency": {"moves": 1}} if delta is None else {}
    document = {"id": "c-1", "created": 17, "choices": choices, **usage}
    return b"data: " + json.dumps(document).encode() + b"\n\n"


STREAM = [
    event({"role": "assistant", "content": ""}),
    event({"content": "Wœ"}, logprobs={"content": [{"token": "Wœ", "logprob": -0.25}]}),
    b": continued on another replica after 0.31 s\n\n",
    event({"content": ""}, logprobs={"content": [{"token": "\ufffd", "logprob": -0.5}]}),
    event({"content": "lf"}, "length", logprobs={"content": [{"token": "lf", "logprob": -1.0}]}),
    event(None),
    DONE,
]


def read(
    frames: list[bytes], step_s: float = 0.1, status: int = 200, failure: str = "",
    given_up: bool = False, tokens: int = 3,
) -> Stream:  # fmt: skip
    """Frame n comes at n steps, and the end with the next."""
    chat = GreedyChat("moon", tokens, 0.0)
    chat.status, chat.failure, chat.given_up = status, failure, given_up
    for at, frame in enumerate(frames):
        chat.feed(frame, at * step_s)
    return chat.end(len(frames) * step_s)


def test_a_stream_is_read_with_its_tokens_and_its_move() -> None:
    stream = read(STREAM)
    assert (stream.text, stream.finish_reasons, stream.usage) == ("Wœlf", ["length"], USAGE)
    assert stream.logprobs == [("Wœ", -0.25), ("\ufffd", -0.5), ("lf", -1.0)]
    assert (stream.answers, stream.roles, stream.outcome) == (1, 1, "whole")
    assert stream.moves == [(0.1, pytest.approx(0.3))]


def test_the_record_does_not_depend_on_how_bytes_are_cut() -> None:
    one, other = read([b"".join(STREAM)], 0.0), read([bytes([byte]) for byte in b"".join(STREAM)], 0.0)
    assert one == other


def test_a_record_survives_json() -> None:
    stream = read(STREAM)
    assert differences(Stream(**json.loads(json.dumps(asdict(stream)))), stream) == []


def test_the_end_of_a_stream_decides_its_outcome() -> None:
    found = {
        "pause": read(STREAM, step_s=0.6),
        "error and [DONE]": read([*STREAM[:2], ERROR, DONE]),
        "error": read([*STREAM[:2], ERROR]),
        "no [DONE]": read(STREAM[:-1]),
        "broken": read(STREAM[:-1], failure="ClientPayloadError"),
        "refused": read([], status=503, failure="HTTP 503"),
        "a token lost": read(STREAM, tokens=4),
        "slow": read(STREAM[:-1], given_up=True),
        "stuck": read(STREAM[:2], step_s=6.0, given_up=True),
    }
    assert {name: (one.outcome, one.error) for name, one in found.items()} == {
        "pause": ("paused", ""),
        "error and [DONE]": ("error", "replica_lost: gone"),
        "error": ("cut", "replica_lost: gone"),
        "no [DONE]": ("cut", "the stream ended without [DONE]"),
        "broken": ("cut", "ClientPayloadError"),
        "refused": ("refused", "HTTP 503"),
        "a token lost": ("cut", "[DONE] after 3 of 4 tokens"),
        "slow": ("open", ""),
        "stuck": ("hung", "nothing for 6.0 s"),
    }


def test_streams_differ_in_a_word_a_count_or_a_mixed_up_answer() -> None:
    one = read(STREAM)
    assert differences(replace(one, text="Wolf"), one) == ["text"]
    assert differences(replace(one, usage={**USAGE, "completion_tokens": 4}), one) == ["usage"]
    assert differences(replace(one, answers=2, roles=2), one) == ["answers", "roles"]
    assert differences(replace(one, finish_reasons=["stop"]), one) == ["finish_reasons"]


def test_log_probabilities_may_be_rounded_differently() -> None:
    one = read(STREAM)
    (token, figure), *rest = one.logprobs
    assert differences(replace(one, logprobs=[(token, figure - 0.05), *rest]), one) == []
    assert differences(replace(one, logprobs=[(token, figure - 0.2), *rest]), one) == ["logprobs"]
    assert differences(replace(one, logprobs=rest), one) == ["logprobs"]
