"""What the counts of a version learn from an answer."""

import time
from collections import Counter
from typing import Any

import pytest

from serve_app.api.answer_watch import COPIES, AnswerWatch
from serve_app.api.engine_client import EngineRequest, Outcome
from serve_app.wire.data_plane import TokenCounts


def counted(*parts: bytes, **changed: Any) -> dict[str, int]:
    counts = Counter[str]()
    watch = AnswerWatch(counts)
    for part in parts:
        watch.note(part)
    watch.count(request(**changed))
    return {name: value for name, value in counts.items() if value}


def request(
    tokens: int = 9, outcome: Outcome = "ok", ttft_s: float | None = None, **more: Any
) -> EngineRequest:
    asked = EngineRequest(more.pop("operation", "chat_completions"), b"{}", "r", **more)
    asked.counts, asked.outcome, asked.ttft_s = TokenCounts(output=tokens), outcome, ttft_s
    return asked


STOP = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


@pytest.mark.parametrize(
    "part",
    [
        b'data: {"choices":[{"delta":{},"finish_reason":"length"}]}\n\n',
        b'{"choices":[{"message":{"content":"a"},"finish_reason": "length"}]}',
        b'event: message_delta\ndata: {"delta":{"stop_reason":"max_tokens"}}\n\n',
        b'event: response.incomplete\ndata: {"response":{}}\n\n',
        b'{"status":"incomplete","incomplete_details":{"reason":"max_output_tokens"}}',
    ],
)
def test_answers_at_their_limit_are_counted(part: bytes) -> None:
    assert counted(b"data: {}\n\n", part)["length"] == 1


def test_texts_about_limits_are_no_limits() -> None:
    quoted = rb'data: {"choices":[{"delta":{"content":"\"finish_reason\":\"length\""}}]}' + b"\n\n"

    assert "length" not in counted(quoted, STOP)


@pytest.mark.parametrize(
    ("fragments", "bad"),
    [
        ([r"{\"a\":", " 1}"], 0),
        ([r"{\"a\":1}", r"{\"b\":2}"], 0),  # two calls
        ([r"{\"a\":"], 1),
        (["no json"], 1),
    ],
)
def test_tool_calls_must_be_json(fragments: list[str], bad: int) -> None:
    parts = [
        f'data: {{"tool_calls":[{{"function":{{"arguments":"{each}"}}}}]}}\n\n'.encode() for each in fragments
    ]
    found = counted(*parts)

    assert (found["tool_calls"], found.get("bad_tool_calls", 0)) == (1, bad)


def test_streams_have_a_mean_inter_token_latency() -> None:
    asked = request(tokens=1001, ttft_s=1.0, wants_stream=True, arrived=time.perf_counter() - 1001.5)
    counts = Counter[str]()
    AnswerWatch(counts).count(asked)

    assert counts["itl:1"] == 1


def test_only_answers_without_text_are_empty() -> None:
    limit = b'{"finish_reason":"length"}'

    assert counted(STOP, tokens=1)["empty"] == 1
    assert "empty" not in counted(STOP, tokens=2)
    assert "empty" not in counted(limit, tokens=1)


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"outcome": "error"}, {"requests": 1, "errors": 1}),
        ({"outcome": "rejected"}, {"refused": 1}),
        ({"outcome": "client_error"}, {}),
        ({"outcome": "abandoned"}, {}),
        ({"operation": "embeddings", "ttft_s": 1.0}, {"requests": 1, "ttft:0": 1}),
        ({"operation": "embeddings", "ttft_s": 1.0, "caller": COPIES}, {"requests": 1, "copies": 1}),
    ],
)
def test_outcomes_are_counted(changed: dict[str, Any], expected: dict[str, int]) -> None:
    assert counted(**changed) == expected


@pytest.mark.parametrize("outcome", ["ok", "error", "abandoned"])
def test_a_loss_counts_once_and_at_once(outcome: Outcome) -> None:
    counts = Counter[str]()
    watch = AnswerWatch(counts)
    watch.fail()
    watch.fail()
    assert counts == {"requests": 1, "errors": 1}
    watch.count(request(outcome=outcome))

    assert (counts["requests"], counts["errors"]) == (1, 1)
