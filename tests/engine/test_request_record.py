"""The record of a request, on vLLM's own output processor fed what an engine core would send."""

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
from vllm.v1.metrics.stats import IterationStats, PrefillStats, RequestStateStats

from serve_app.api.engine_client import EngineRequest, RequestState
from serve_app.engine import request_record
from serve_app.engine.request_record import USAGE_MARK, RequestRecord, latency_figures, watch_sequences
from serve_app.wire.continuation import Continuation
from serve_app.wire.request_line import RequestLine


def request(continuation: Continuation | None = None) -> EngineRequest:
    return EngineRequest(
        "chat_completions",
        b"{}",
        "r-1",
        time.perf_counter() - 40.0,
        continuation=continuation,
        state=RequestState(queued_s=39.5),
    )


class Core:
    """An output processor that is watched, and the engine core behind it."""

    def __init__(self) -> None:
        self.processor = OutputProcessor(None, log_stats=True)
        watch_sequences(self.processor)
        self._started = 0

    def start(self, prompt: int, external_id: str = "chatcmpl-r-1") -> str:
        """vLLM takes a sequence, in the task that calls."""
        self._started += 1
        name = f"{external_id}-{self._started}"
        request = EngineCoreRequest(
            request_id=name,
            external_req_id=external_id,
            prompt_token_ids=list(range(prompt)),
            mm_features=None,
            sampling_params=SamplingParams(output_kind=RequestOutputKind.DELTA),
            pooling_params=None,
            arrival_time=time.time(),
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        queue = RequestOutputCollector(RequestOutputKind.DELTA, name)
        self.processor.add_request(request, None, None, 0, queue)
        return name

    def step(self, name: str, tokens: int, cached: int | None = None, *, last: bool = False) -> None:
        prefill = None
        if cached is not None:
            prefill = PrefillStats()
            prefill.set(self.processor.request_states[name].prompt_len, cached, 0)
        output = EngineCoreOutput(
            name,
            list(range(tokens)),
            prefill_stats=prefill,
            finish_reason=FinishReason.STOP if last else None,
        )
        self.processor.process_outputs([output], time.monotonic(), IterationStats())


@pytest.fixture
def core() -> Core:
    return Core()


def ended(record: RequestRecord) -> RequestLine:
    line = record.line("tide")
    assert line is not None
    return line


async def test_finished_request_has_tokens_and_times_since_arrival(core: Core) -> None:
    before = time.time()
    record = RequestRecord.begin(request())
    name = core.start(prompt=12)
    core.step(name, 1, cached=8)
    core.step(name, 3)
    core.step(name, 1, last=True)
    record.status = 200
    record.complete()

    line = ended(record)

    assert name not in core.processor.request_states  # vLLM has forgotten it
    assert (line.model, line.operation, line.request_id) == ("tide", "chat_completions", "r-1")
    assert (line.input_tokens, line.cached_tokens, line.output_tokens, line.sequences) == (12, 8, 5, 1)
    assert record.request.state.cached_tokens == 8
    assert (line.status, line.outcome, line.held_s) == (200, "completed", 39.5)
    assert before - 40.001 <= line.arrived_at <= time.time() - 40.0
    assert line.ttft_s is not None
    assert line.ttft_s + 1e-5 >= 40.0
    assert line.e2e_s >= 40.0


async def test_line_sums_only_the_requests_own_sequences(core: Core) -> None:
    async def call(*prompts: int) -> RequestLine:
        record = RequestRecord.begin(request())

        async def start(prompt: int) -> str:
            await asyncio.sleep(0)
            return core.start(prompt)

        for name in await asyncio.gather(*map(start, prompts)):
            await asyncio.sleep(0)
            core.step(name, 2, cached=1, last=True)
        return ended(record)

    lines = await asyncio.gather(call(4, 6), call(5))

    assert [(line.input_tokens, line.cached_tokens) for line in lines] == [(10, 2), (5, 1)]
    assert [(line.output_tokens, line.sequences) for line in lines] == [(4, 2), (2, 1)]


@pytest.mark.parametrize("tokens", [0, 2])
async def test_an_abandoned_request_has_the_tokens_generated_so_far(core: Core, tokens: int) -> None:
    record = RequestRecord.begin(request())
    name = core.start(prompt=7)
    for number in range(tokens):
        core.step(name, 1, cached=None if number else 0)
    core.processor.abort_requests([name], internal=True)

    line = ended(record)

    assert (line.input_tokens, line.output_tokens, line.outcome) == (7, tokens, "abandoned")
    assert (line.ttft_s is None, line.status) == (tokens == 0, None)


async def test_failure_keeps_the_status_already_sent(core: Core) -> None:
    early, late = RequestRecord.begin(request()), RequestRecord.begin(request())
    for record in (early, late):
        record.sequences.append(SEQUENCE)
    early.fail(503)
    late.status = 200
    late.fail(500)
    late.complete()

    assert (ended(early).status, ended(early).outcome) == (503, "failed")
    assert (ended(late).status, ended(late).outcome) == (200, "failed")


async def test_request_that_never_reached_engine_has_no_line() -> None:
    record = RequestRecord.begin(EngineRequest("tokenize", b"{}", "r-1"))
    record.complete()

    assert record.line("tide") is None
    assert record.request.state.cached_tokens is None


async def test_moved_stream_counts_from_first_event_elsewhere(core: Core) -> None:
    asked = request(Continuation(([1, 2],), created=7, ttft_s=0.25, moves=2))
    record = RequestRecord.begin(asked)
    name = core.start(prompt=12)
    core.step(name, 1, cached=12, last=True)
    record.note_first_event()

    final = record.with_latency(frame(choices=[], usage={**USAGE, "prompt_tokens": 10}))

    assert record.first_token == asked.arrived + 0.25
    latency = json.loads(final.removeprefix(b"data: "))["latency"]
    assert (latency["ttft_ms"], latency["cached_tokens"], latency["moves"]) == (250.0, 10, 2)
    line = ended(record)
    assert (line.ttft_s, line.input_tokens, line.output_tokens) == (0.25, 12, 1)


class _Sequence:
    prompt_len = 1
    num_cached_tokens = 0

    stats = RequestStateStats()


SEQUENCE: Any = _Sequence


def figures(first: float, now: float, tokens: int, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Of a request that arrived at 100 s and was held for 0.2 s."""
    monkeypatch.setattr(request_record, "time", SimpleNamespace(perf_counter=lambda: now))
    asked = EngineRequest("chat_completions", b"{}", "r-1", arrived=100.0, state=RequestState(queued_s=0.2))
    return latency_figures(asked, first, tokens)


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
    first: float, now: float, tokens: int, expected: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    ttft, gap, total, rate = expected
    assert figures(first, now, tokens, monkeypatch) == {
        "cold_wait_ms": 200.0,
        "ttft_ms": ttft,
        "inter_token_ms": gap,
        "total_time_ms": total,
        "tokens_generated": tokens,
        "tokens_per_second": rate,
    }


def test_engine_times_cover_all_sequences_of_a_request() -> None:
    record = RequestRecord(request(), 0.0)
    assert record.engine_times() == {}
    for queued, scheduled, first, last in ((10.0, 10.5, 11.0, 12.0), (10.1, 11.0, 11.5, 14.0), (0, 0, 0, 0)):
        stats = RequestStateStats(
            queued_ts=queued, scheduled_ts=scheduled, first_token_ts=first, last_token_ts=last
        )
        record.sequences.append(SimpleNamespace(stats=stats))

    assert record.engine_times() == {"queue_ms": 500.0, "prefill_ms": 500.0, "decode_ms": 3000.0}


def frame(**document: object) -> bytes:
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}


def test_final_usage_frame_gains_latency() -> None:
    record = RequestRecord(request(), 0.0, [SEQUENCE], first_token=time.perf_counter())
    final = frame(id="c-1", choices=[], usage=USAGE)
    assert USAGE_MARK in final

    timed = record.with_latency(final)

    assert timed.startswith(b"data: ")
    assert (timed.endswith(b"\n\n"), timed.count(b"\n\n")) == (True, 1)
    document = json.loads(timed.removeprefix(b"data: "))
    latency = document.pop("latency")
    assert document == {"id": "c-1", "choices": [], "usage": USAGE}
    assert (latency["tokens_generated"], latency["cached_tokens"]) == (3, 0)
    assert latency["ttft_ms"] >= 40_000


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
def test_every_other_frame_is_left_as_it_is(other: bytes) -> None:
    assert USAGE_MARK not in other or RequestRecord(request(), 0.0).with_latency(other) == other
