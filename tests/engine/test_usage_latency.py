from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from serve_app.engine import usage_latency as latency
from serve_app.engine.usage_latency import StreamTimer, with_latency


class Clock:
    """`time` for the module under test: `now` is what its performance counter shows."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(latency, "time", SimpleNamespace(perf_counter=made.perf_counter))
    return made


def test_times_are_counted_from_the_arrival_at_the_ingress(clock: Clock) -> None:
    """0.25 s before the engine had it, first token 0.5 s later, five more in the 2 s after that."""
    timer = StreamTimer(clock.now - 0.25, held_s=0.2)
    clock.now = 100.5
    timer.token()
    clock.now = 102.5

    assert timer.figures(6) == {
        "cold_wait_ms": 200.0,
        "ttft_ms": 750.0,
        "inter_token_ms": 400.0,  # 2 s over five gaps
        "total_time_ms": 2750.0,
        "tokens_generated": 6,
        "tokens_per_second": 2.182,  # 6 / 2.75 s
    }


def test_only_the_first_token_is_the_first(clock: Clock) -> None:
    timer = StreamTimer(100.0)
    clock.now = 101.0
    timer.token()
    clock.now = 102.0
    timer.token()
    clock.now = 103.0

    assert timer.figures(3)["ttft_ms"] == 1000.0
    assert timer.figures(3)["inter_token_ms"] == 1000.0


def test_one_token_has_no_gap(clock: Clock) -> None:
    timer = StreamTimer(100.0)
    clock.now = 101.0
    timer.token()
    clock.now = 104.0

    assert timer.figures(1)["inter_token_ms"] == 0.0


def test_a_generation_without_tokens_is_first_and_last_at_once(clock: Clock) -> None:
    timer = StreamTimer(100.0)
    clock.now = 100.5

    assert timer.figures(0) == {
        "cold_wait_ms": 0.0,
        "ttft_ms": 500.0,
        "inter_token_ms": 0.0,
        "total_time_ms": 500.0,
        "tokens_generated": 0,
        "tokens_per_second": 0.0,
    }


def test_no_time_at_all_is_no_division_by_zero(clock: Clock) -> None:
    assert StreamTimer(100.0).figures(5)["tokens_per_second"] == 0.0


def frame(**document: object) -> bytes:
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}


def test_the_final_usage_frame_carries_the_latency_and_keeps_what_it_had(clock: Clock) -> None:
    timer = StreamTimer(100.0)
    clock.now = 101.0

    timed = with_latency(frame(id="c-1", choices=[], usage=USAGE), timer, lambda: 7)

    assert timed.startswith(b"data: ")
    assert timed.endswith(b"\n\n")
    assert timed.count(b"\n\n") == 1
    assert json.loads(timed.removeprefix(b"data: ")) == {
        "id": "c-1",
        "choices": [],
        "usage": USAGE,
        "latency": {**timer.figures(3), "cached_tokens": 7},
    }


@pytest.mark.parametrize(
    "other",
    [
        frame(id="c-1", choices=[{"delta": {"content": "a"}}]),
        frame(id="c-1", choices=[{"delta": {"content": "a"}}], usage=USAGE),  # usage in every chunk
        frame(id="c-1", choices=[{"delta": {"content": '"choices":[],"usage":{"completion_tokens":1}'}}]),
        frame(choices=[], usage=None),
        frame(choices=[], prompt_filter_results=[]),
        frame(error={"message": "no"}),
        b"data: [DONE]\n\n",
        b": keep-alive\n\n",
    ],
)
def test_every_other_frame_is_left_as_it_is(clock: Clock, other: bytes) -> None:
    assert with_latency(other, StreamTimer(100.0), lambda: 0) == other
