"""What the HTTP API asks of an engine, wherever that engine runs."""

from __future__ import annotations

import math
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
GPU_OPERATIONS: frozenset[Operation] = frozenset(
    {"chat_completions", "completions", "embeddings", "generate"}
)
"""Operations that are work for a GPU. Tokenizing is not."""

JSON = "application/json"
EVENT_STREAM = "text/event-stream"


@dataclass(frozen=True, slots=True)
class ColdWait:
    """What is known of a request's wait for a replica, at one moment. Times in seconds."""

    model: str
    phase: str
    """How far the replica nearest to readiness is."""
    eta_s: float | None
    """Until that replica is expected to be ready; None where nothing was ever measured."""
    waited_s: float

    def comment(self) -> bytes:
        """The SSE comment that tells a client: ignored by parsers, readable by people."""
        eta = "unknown" if self.eta_s is None else str(math.ceil(self.eta_s))
        return (
            f": waiting for a replica of {self.model}: phase={self.phase} eta_s={eta} "
            f"waited_s={int(self.waited_s)}\n\n"
        ).encode()


class RequestWatch(Protocol):
    """Told by a transport how a request fares on its way to an engine."""

    async def held(self, wait: ColdWait) -> None:
        """No replica can take the request yet. Awaited every `keep_alive_interval_s` of its wait."""

    def waited(self, seconds: float) -> None:
        """A wait for a replica is over after `seconds`, however it ended."""

    def admitted(self) -> None:
        """The request goes to a replica now; once more for each replica tried after a lost one."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One API call on its way to an engine, its JSON body untouched."""

    operation: Operation
    body: bytes
    request_id: str
    waited_s: float = 0.0
    """Seconds between the arrival at the ingress and this hand-over; part of the user's TTFT."""
    watch: RequestWatch | None = field(default=None, compare=False, repr=False)
    held_s: float = 0.0
    """Of `waited_s`, the time it was held for want of a replica that could take it."""
    streams: bool = False
    """Whether the client asked for a stream: its first byte then tells that the prompt is prefilled."""


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
