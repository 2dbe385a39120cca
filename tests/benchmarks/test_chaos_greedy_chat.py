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


def named(kind: str, **fields: object) -> bytes:
    return b"event: %b\ndata: " % kind.encode() + json.dumps({"type": kind, **fields}).encode() + b"\n\n"


MESSAGE = [
    named("message_start", message={"id": "m-1", "usage": {"input_tokens": 9}}),
    b": queued\n\n" + named("ping"),
    named("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    named("content_block_delta", index=0, delta={"type": "text_delta", "text": "Wo"}),
    b": continued on another replica after 0.31 s\n\n",
    named("content_block_delta", index=0, delta={"type": "text_delta", "text": "lf"}),
    named("message_delta", delta={"stop_reason": "max_tokens"}, usage={"output_tokens": 3}),
    named("message_stop"),
]
RESPONSE = [
    named("response.created", response={"id": "r-1", "status": "in_progress"}),
    named("response.content_part.added", part={"type": "output_text"}),
    named("response.output_text.delta", delta="Wo"),
    b": continued on another replica after 0.31 s\n\n",
    named("response.output_text.delta", delta="lf"),
    named(
        "response.incomplete", response={"id": "r-1", "status": "incomplete", "usage": {"output_tokens": 3}}
    ),
]


def read(
    frames: list[bytes], step_s: float = 0.1, status: int = 200, failure: str = "",
    given_up: bool = False, tokens: int = 3, api: str = "chat",
) -> Stream:  # fmt: skip
    """Frame n comes at n steps, and the end with the next."""
    chat = GreedyChat("moon", tokens, 0.0, api)
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


@pytest.mark.parametrize(("api", "frames"), [("messages", MESSAGE), ("responses", RESPONSE)])
def test_other_apis_are_read_alike(api: str, frames: list[bytes]) -> None:
    stream = read(frames, api=api)
    assert (stream.text, stream.usage, stream.outcome) == ("Wolf", {"completion_tokens": 3}, "whole")
    assert (stream.answers, stream.roles, len(stream.moves)) == (1, 1, 1)
    assert read(frames[:-1], api=api).outcome == "cut"
    assert read(frames, api=api, tokens=4).outcome == "cut"


@pytest.mark.parametrize(
    ("api", "frames"),
    [
        ("messages", [*MESSAGE[:4], named("error", error={"type": "api_error", "message": "gone"})]),
        (
            "responses",
            [
                *RESPONSE[:3],
                named("error", error={"code": "api_error", "message": "gone"}),
                named("response.failed", response={"id": "r-1", "status": "failed"}),
            ],
        ),
    ],
)
def test_other_apis_end_in_their_own_error(api: str, frames: list[bytes]) -> None:
    assert (read(frames, api=api).outcome, read(frames, api=api).error) == ("error", "api_error: gone")


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
