"""The record of a request: its line in the log, and the latency in its last frame."""

import asyncio
import json
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from vllm.v1.metrics.stats import RequestStateStats

from serve_app.api.dialect import COMPLETIONS
from serve_app.engine.chat_operations import Serving
from serve_app.engine.engine_call import EngineCall
from serve_app.engine.local_client import LocalEngine, log_line, with_latency
from serve_app.settings.caller import Caller
from serve_app.settings.tree import ModelSettings
from serve_app.wire.data_plane import Continuation
from serve_app.wire.request_line import RequestLine
from tests.engine.calls import changed, engine_call
from tests.engine.local import FakeLog
from tests.engine.streams import events
from tests.engine.stub_engine_core import TOKEN, StubEngineCore

SEA = [{"role": "user", "content": "sea"}]


def request(continuation: Continuation | None = None, **body: Any) -> EngineCall:
    document = {"messages": SEA, "stream": True, "stream_options": {"include_usage": True}, **body}
    return engine_call(
        "completions" if "prompt" in body else "chat_completions",
        json.dumps(document).encode(),
        "r-1",
        time.perf_counter() - 40.0,
        continuation=continuation,
        queued_s=30.0,
        lost_s=9.5,
    )


class Logged:
    """A client of an engine, and the lines that it logs."""

    def __init__(self, serving: Serving, core: StubEngineCore) -> None:
        self.core = core
        variants = ({"name": "spot", "usd_per_hour": 1},)
        model = ModelSettings.model_validate({"name": "tide", "variants": variants})
        self._client = LocalEngine(serving, model, lambda _: None)
        self._log = FakeLog()
        self._client.request_log = self._log  # type: ignore[assignment]

    async def run(self, asked: EngineCall, chunks: int | None = None) -> tuple[list[bytes], RequestLine]:
        """The chunks of a stream, which is left after so many, and its line."""
        sent: list[bytes] = []
        async with self._client.call(asked) as reply:
            assert reply.stream is not None
            while chunks is None or len(sent) < chunks:
                try:
                    sent.append(await anext(reply.stream))
                except StopAsyncIteration:
                    break
        return sent, self._log.lines[-1]


@pytest.fixture
def logged(serving: Serving) -> Iterator[Logged]:
    core: Any = serving.engine.engine_core
    yield Logged(serving, core)
    core.most_steps, core.cached_tokens = None, 0


async def test_finished_request_has_tokens_and_times_since_arrival(logged: Logged) -> None:
    before, asked = time.time(), request(max_tokens=5)
    logged.core.cached_tokens = 8

    chunks, line = await logged.run(asked)

    assert (line.model, line.variant) == ("tide", "spot")
    assert (line.operation, line.request_id) == ("chat_completions", "r-1")
    assert (line.cached_tokens, line.output_tokens, line.sequences) == (8, 5, 1)
    latency = events(chunks)[-1]["latency"]
    assert (latency["tokens_generated"], latency["cached_tokens"]) == (5, 8)
    assert line.input_tokens == events(chunks)[-1]["usage"]["prompt_tokens"] == asked.counts.prompt
    assert asked.counts.cached == 8
    assert (asked.counts.input, asked.counts.output) == (line.input_tokens, 5)
    assert (line.status, line.outcome, line.held_s) == (200, "completed", 30.0)
    assert line.lost_s == 9.5
    assert latency["lost_ms"] == 9500.0
    assert before - 40.001 <= line.arrived_at <= time.time() - 40.0
    assert line.ttft_s is not None
    assert line.ttft_s + 1e-5 >= 40.0
    assert line.e2e_s >= 40.0


async def test_line_sums_only_the_requests_own_sequences(logged: Logged) -> None:
    logged.core.cached_tokens = 1
    two, one = request(prompt=[[5] * 4, [5] * 6], max_tokens=2), request(prompt=[5] * 5, max_tokens=2)

    lines = [line for _, line in await asyncio.gather(logged.run(two), logged.run(one))]

    assert [(line.input_tokens, line.cached_tokens) for line in lines] == [(10, 2), (5, 1)]
    assert [(line.output_tokens, line.sequences) for line in lines] == [(4, 2), (2, 1)]
    assert (two.counts.prompt, one.counts.prompt) == (None, 5)
    assert (two.counts.input, two.counts.output) == (10, 4)


async def test_abandoned_request_has_the_tokens_generated_so_far(logged: Logged) -> None:
    logged.core.most_steps = 2

    _, line = await logged.run(request(prompt=[5] * 7, max_tokens=9), chunks=1)

    assert (line.input_tokens, line.outcome) == (7, "abandoned")
    assert line.output_tokens in (1, 2)


async def test_line_names_key_lane_and_alias(logged: Logged) -> None:
    asked = changed(request(max_tokens=1), caller=Caller("mail", "background"), alias="gpt-4o")
    _, named = await logged.run(asked)
    _, anyones = await logged.run(request(max_tokens=1))

    assert (named.key, named.lane, named.model, named.alias) == ("mail", "background", "tide", "gpt-4o")
    assert not {"key", "lane", "alias"} & msgspec.json.decode(msgspec.json.encode(anyones)).keys()


async def test_request_that_never_reached_engine_has_no_line() -> None:
    call = engine_call("tokenize", b"{}", "r-1")
    call.complete()

    assert log_line(call) is None
    assert call.counts.cached is None


async def test_moved_stream_counts_from_first_event_elsewhere(logged: Logged) -> None:
    begun = Continuation(([TOKEN] * 2,), created=7, ttft_s=0.25, moves=2)
    _, whole = await logged.run(request(max_tokens=1))
    logged.core.cached_tokens = whole.input_tokens + 1  # with an output token of another engine

    chunks, line = await logged.run(request(begun, max_tokens=3))

    document = events(chunks)[-1]
    latency, prompt = document["latency"], document["usage"]["prompt_tokens"]
    assert (latency["ttft_ms"], latency["cached_tokens"], latency["moves"]) == (250.0, prompt, 2)
    assert (line.ttft_s, line.input_tokens, line.output_tokens) == (0.25, prompt + 2, 1)


@pytest.mark.parametrize(
    ("first", "now", "tokens", "expected"),
    [
        (100.75, 102.75, 6, (750.0, 400.0, 2750.0, 2.182)),  # 2 s over five gaps; 6 / 2.75 s
        (101.0, 104.0, 1, (1000.0, 0.0, 4000.0, 0.25)),  # one token has no gap
        (0.0, 100.5, 0, (500.0, 0.0, 500.0, 0.0)),  # without tokens, first and last are one
        (0.0, 100.0, 5, (0.0, 0.0, 0.0, 0.0)),  # no time at all is no division by zero
    ],
)
def test_times_are_counted_from_the_arrival_at_the_ingress(
    first: float, now: float, tokens: int, expected: tuple[float, ...]
) -> None:
    ttft, gap, total, rate = expected
    asked = engine_call("chat_completions", b"{}", "r-1", queued_s=0.2)
    asked.arrived = 100.0
    assert asked.latency(first, tokens, now) == {
        "cold_wait_ms": 200.0,
        "ttft_ms": ttft,
        "inter_token_ms": gap,
        "total_time_ms": total,
        "tokens_generated": tokens,
        "tokens_per_second": rate,
    }


def test_engine_times_cover_all_sequences_of_a_request() -> None:
    call = request()
    assert call.engine_times() == {}
    for queued, scheduled, first, last in ((10.0, 10.5, 11.0, 12.0), (10.1, 11.0, 11.5, 14.0), (0, 0, 0, 0)):
        stats = RequestStateStats(
            queued_ts=queued, scheduled_ts=scheduled, first_token_ts=first, last_token_ts=last
        )
        call.sequences.append(SimpleNamespace(stats=stats))

    assert call.engine_times() == {"queue_ms": 500.0, "prefill_ms": 500.0, "decode_ms": 3000.0}


def frame(**document: object) -> bytes:
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}


@pytest.mark.parametrize(
    ("given", "timed"),
    [
        (frame(id="c-1", choices=[], usage=USAGE), True),
        (frame(id="c-1", choices=[{"delta": {"content": "a"}}]), False),
        (frame(id="c-1", choices=[{"delta": {"content": "a"}}], usage=USAGE), False),  # in every chunk
        (frame(choices=[{"delta": {"content": '"choices":[],"usage":{"completion_tokens":1}'}}]), False),
        (frame(choices=[], usage=None), False),
        (frame(error={"message": "no"}), False),
        (b"data: [DONE]\n\n", False),
        (b": keep-alive\n\n", False),
    ],
)
def test_only_the_final_usage_frame_gains_latency(given: bytes, timed: bool) -> None:
    call = request()
    got = with_latency(call, given) if COMPLETIONS.has_usage(given) else given

    assert (got.count(b"\n\n"), got.endswith(b"\n\n")) == (1, True)
    if not timed:
        assert got == given
        return
    document = json.loads(got.removeprefix(b"data: "))
    assert document.pop("latency")["tokens_generated"] == 3
    assert document == json.loads(given.removeprefix(b"data: "))
