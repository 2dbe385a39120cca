"""What becomes of one request in this engine, for the request log."""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from vllm.v1.engine.output_processor import OutputProcessor

from serve_app.api.engine_client import EngineRequest
from serve_app.wire.request_line import ABANDONED, COMPLETED, FAILED, RequestLine

_current: ContextVar[RequestRecord | None] = ContextVar("request_record", default=None)


@dataclass(slots=True)
class RequestRecord:
    """One call of the engine, from its hand-over to its end: abandoned until another outcome is noted."""

    request: EngineRequest
    arrived_at: float
    """When the request arrived at the ingress, in Unix time."""
    sequences: list[Any] = field(default_factory=list)
    """vLLM's states of its sequences, which outlive their removal from the engine."""
    status: int | None = None
    outcome: str = ABANDONED

    @classmethod
    def begin(cls, request: EngineRequest) -> RequestRecord:
        """A record of `request`, to which the sequences that this task and its children start belong."""
        record = cls(request, time.time() - request.waited_s)
        _current.set(record)
        return record

    def answering(self, status: int) -> None:
        """Note the HTTP status of the answer."""
        self.status = status

    def completed(self) -> None:
        """Note that all of the answer has been generated, unless the request has failed already."""
        if self.outcome != FAILED:
            self.outcome = COMPLETED

    def failed(self, status: int) -> None:
        """Note that an error ended the request, with the status for a client that has not been sent one."""
        self.outcome = FAILED
        if self.status is None:
            self.status = status

    def cached_tokens(self) -> int:
        """Prompt tokens found in the prefix cache, over all sequences."""
        return sum(sequence.num_cached_tokens for sequence in self.sequences)

    def line(self, model: str) -> RequestLine | None:
        """The line of a request that has just ended; None for one that never was in the engine."""
        if not self.sequences:
            return None
        request = self.request
        # vLLM has the time of a first token relative to when it took the sequence, in Unix time.
        first_at = min(
            (
                sequence.stats.arrival_time + sequence.stats.first_token_latency
                for sequence in self.sequences
                if sequence.stats.first_token_latency > 0.0
            ),
            default=None,
        )
        return RequestLine(
            arrived_at=round(self.arrived_at, 6),
            model=model,
            operation=request.operation,
            request_id=request.request_id,
            input_tokens=sum(sequence.prompt_len for sequence in self.sequences),
            cached_tokens=self.cached_tokens(),
            output_tokens=sum(sequence.stats.num_generation_tokens for sequence in self.sequences),
            sequences=len(self.sequences),
            ttft_s=None if first_at is None else round(first_at - self.arrived_at, 6),
            e2e_s=round(request.waited_s, 6),
            held_s=round(request.held_s, 6),
            status=self.status,
            outcome=self.outcome,
        )


def watch_sequences(processor: OutputProcessor) -> None:
    """Have `processor` note each sequence it takes in the record of the request that started it.

    vLLM tells of a request's tokens only when it has finished by itself, and by an id that clients choose.
    Its own states have them of every request, and nothing is paid for a token.
    """
    add = processor.add_request

    def add_and_note(request: Any, *args: Any, **kwargs: Any) -> None:
        add(request, *args, **kwargs)
        record = _current.get()
        if record is not None:
            record.sequences.append(processor.request_states[request.request_id])

    # Set on the instance: the class is shared with whatever else vLLM may build from it.
    processor.add_request = add_and_note
