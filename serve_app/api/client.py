"""What the HTTP API asks of an engine, wherever that engine runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol

Operation = Literal["chat_completions", "completions", "embeddings", "tokenize", "detokenize", "generate"]
OPERATIONS: tuple[Operation, ...] = (
    "chat_completions",
    "completions",
    "embeddings",
    "tokenize",
    "detokenize",
    "generate",
)

JSON = "application/json"
EVENT_STREAM = "text/event-stream"


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One API call on its way to an engine, its JSON body untouched."""

    operation: Operation
    body: bytes
    request_id: str
    waited_s: float = 0.0
    """Seconds between the arrival at the ingress and this hand-over; part of the user's TTFT."""


@dataclass(frozen=True, slots=True)
class EngineReply:
    """An engine's answer: either a whole JSON `body`, or an event `stream` of whole SSE frames.

    The first chunk of `stream` is at hand before the reply exists, so that whatever goes wrong
    earlier still has an HTTP status of its own.
    """

    status: int
    body: bytes = b""
    stream: AsyncIterator[bytes] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def content_type(self) -> str:
        """The media type of what is sent."""
        return JSON if self.stream is None else EVENT_STREAM


class EngineClient(Protocol):
    """A model's engines, seen from the HTTP API."""

    def call(self, request: EngineRequest) -> AbstractAsyncContextManager[EngineReply]:
        """Run `request`; leaving the context, or cancelling, frees its sequences in the engine.

        Raises:
            ApiError: when no engine could take the request or the engine was lost.
        """
        ...
