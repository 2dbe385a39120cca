"""The record of one request in this engine: latency figures, and a line of the request log."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import msgspec

from serve_app.api.engine_client import EngineRequest
from serve_app.wire.data_plane import TokenCounts
from serve_app.wire.request_line import ABANDONED, COMPLETED, FAILED, RequestLine


@dataclass(slots=True)
class RequestRecord:
    """One call of the engine, from arrival to end. The outcome is `ABANDONED` until another is recorded."""

    request: EngineRequest
    sequences: list[Any]
    """vLLM's states of the request's sequences so far; see `EngineStream`."""
    arrived_at: float
    """When the request arrived at the ingress, in Unix time."""
    first_token: float = 0.0
    """When the first token came, by this process's `time.perf_counter`; 0 until then. For a stream that
    another engine began, the time of that engine's first token."""
    status: int | None = None
    outcome: str = ABANDONED

    @classmethod
    def begin(cls, request: EngineRequest, sequences: list[Any]) -> RequestRecord:
        """Return a record of `request`, whose sequences will be added to `sequences`."""
        return cls(request, sequences, time.time() - request.waited_s)

    def note_first_event(self) -> None:
        """Record the time of a stream's first event, and the tokens of its prompts."""
        self.note_counts(self.prompt_tokens())
        continued, self.first_token = self.request.continuation, time.perf_counter()
        if continued is not None:
            self.first_token = self.request.arrived + continued.ttft_s

    def complete(self) -> None:
        """Record that the answer is complete, unless the request has failed already."""
        if self.outcome != FAILED:
            self.outcome = COMPLETED
        self.note_counts(self.prompt_tokens())

    def note_counts(self, prompt: int) -> None:
        """Record the tokens so far, with `prompt` tokens of prompts, in the state of the request."""
        if self.sequences:
            alone = prompt if len(self.sequences) == 1 else None
            counts = TokenCounts(self.cached_tokens(), alone, prompt, self.output_tokens())
            self.request.state.counts = counts

    def fail(self, status: int) -> None:
        """Record that an error ended the request. `status` counts if the client has not got a status yet.

        Prompts that the engine has computed count, for example if vLLM refuses its own answer.
        """
        self.outcome = FAILED
        self.note_counts(sum(one.prompt_len for one in self.sequences if one.stats.first_token_ts > 0.0))
        if self.status is None:
            self.status = status

    def cached_tokens(self) -> int:
        """Return the prompt tokens found in the prefix cache, over all sequences."""
        return sum(sequence.num_cached_tokens for sequence in self.sequences)

    def prompt_tokens(self) -> int:
        """Return the prompt tokens of all sequences."""
        return sum(sequence.prompt_len for sequence in self.sequences)

    def output_tokens(self) -> int:
        """Return the generated tokens of all sequences."""
        return sum(sequence.stats.num_generation_tokens for sequence in self.sequences)

    def engine_times(self) -> dict[str, float]:
        """Return the milliseconds in the engine's queue, of prefill and of decode, over all sequences.

        Without engine times of any sequence, it is empty.
        """
        kept = [sequence.stats for sequence in self.sequences if sequence.stats is not None]
        known = [stats for stats in kept if stats.queued_ts > 0.0]
        if not known:
            return {}
        queued, scheduled = min(one.queued_ts for one in known), min(one.scheduled_ts for one in known)
        first, last = min(one.first_token_ts for one in known), max(one.last_token_ts for one in known)
        times = {"queue_ms": scheduled - queued, "prefill_ms": first - scheduled, "decode_ms": last - first}
        return {name: round(max(0.0, spent) * 1e3, 3) for name, spent in times.items()}

    def with_latency(self, frame: bytes) -> bytes:
        """Return the final usage frame of a stream with a `latency` field; any other frame unchanged.

        Only the usage frame has an empty `choices` (`Dialect.has_usage`). The field also has the number of
        cached prompt tokens, which vLLM's usage lacks by default. For a stream that has moved, the field
        covers the tokens of all engines.
        """
        document = msgspec.json.decode(frame[len(b"data: ") :])
        usage = document.get("usage")
        if not usage:
            return frame
        tokens = usage.get("completion_tokens", 0)
        figures = latency_figures(self.request, self.first_token, tokens, time.perf_counter())
        figures |= self.engine_times()
        # An engine that continues a stream may also have other engines' output tokens in its cache.
        figures["cached_tokens"] = min(self.cached_tokens(), usage.get("prompt_tokens", 0))
        if self.request.continuation is not None and self.request.continuation.moves:
            figures["moves"] = self.request.continuation.moves
        document["latency"] = figures
        return b"data: " + msgspec.json.encode(document) + b"\n\n"

    def line(self, model: str) -> RequestLine | None:
        """Return the log line of a request that has just ended; None if it never was in the engine.

        The tokens of engines that began the stream count as input.
        """
        if not self.sequences:
            return None
        request = self.request
        # vLLM measures a first token from the arrival of its sequence, which is in Unix time.
        first_at = min(
            (
                sequence.stats.arrival_time + sequence.stats.first_token_latency
                for sequence in self.sequences
                if sequence.stats.first_token_latency > 0.0
            ),
            default=None,
        )
        ttft = None if first_at is None else round(first_at - self.arrived_at, 6)
        return RequestLine(
            arrived_at=round(self.arrived_at, 6),
            model=model,
            operation=request.operation,
            request_id=request.request_id,
            input_tokens=self.prompt_tokens(),
            cached_tokens=self.cached_tokens(),
            output_tokens=self.output_tokens(),
            sequences=len(self.sequences),
            ttft_s=ttft if request.continuation is None else request.continuation.ttft_s,
            e2e_s=round(request.waited_s, 6),
            held_s=round(request.state.queued_s, 6),
            status=self.status,
            outcome=self.outcome,
            trace_id=None if request.trace is None else request.trace.trace_id,
            expected_cached_tokens=request.expected_cached_tokens,
            key=request.caller.key,
            lane=request.caller.lane,
            alias=request.alias,
            adapter=request.adapter_name,
            lost_s=round(request.state.lost_s, 6),
        )


def latency_figures(request: EngineRequest, first: float, tokens: int, now: float) -> dict[str, float | int]:
    """Return the latency figures of an answer that ends `now`, measured from the arrival at the ingress.

    Args:
        request: The request.
        first: The time of the first token by `time.perf_counter`; 0 without a token.
        tokens: The number of tokens.
        now: By `time.perf_counter`.
    """
    total = now - request.arrived
    first = first or now
    between = (now - first) / (tokens - 1) if tokens > 1 else 0.0
    lost_ms = round(request.state.lost_s * 1e3, 3)
    return {
        "cold_wait_ms": round(request.state.queued_s * 1e3, 3),
        **({"lost_ms": lost_ms} if lost_ms else {}),
        "ttft_ms": round((first - request.arrived) * 1e3, 3),
        "inter_token_ms": round(between * 1e3, 3),
        "total_time_ms": round(total * 1e3, 3),
        "tokens_generated": tokens,
        "tokens_per_second": round(tokens / total, 3) if total > 0 else 0.0,
    }
