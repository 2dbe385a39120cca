"""The engine as the HTTP API sees it, wherever the engine runs: requests, replies and their state."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

from serve_app.api.body import BodyShare
from serve_app.api.errors import ApiError
from serve_app.api.prompt_prefix import PromptPrefix
from serve_app.api.trace_context import TraceContext
from serve_app.wire.continuation import Continuation, DeliveredTokens

Operation = Literal["chat_completions", "completions", "embeddings", "tokenize", "detokenize", "generate"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)
GPU_OPERATIONS = frozenset(OPERATIONS) - {"tokenize", "detokenize"}
"""Operations that are work for a GPU. Tokenizing is not."""

Outcome = Literal["ok", "rejected", "error", "client_error", "abandoned"]
"""How a request ended, as its client saw it; error rates count outcomes. Answered in full; refused for now
(429); failed (5xx, or a stream that ended in an error event or was cut); wrong in itself (any other 4xx),
or ended by its client's deadline; left by its client before the end."""
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

JSON = "application/json"
EVENT_STREAM = "text/event-stream"


@dataclass(frozen=True, slots=True)
class ColdWait:
    """The progress of a request's wait for a replica, at one moment. Times in seconds."""

    model: str
    phase: str
    """How far the replica nearest to readiness is."""
    eta_s: float | None
    """Until that replica is expected to be ready; None where nothing was ever measured."""
    waited_s: float

    def comment(self) -> bytes:
        """The SSE comment for the client: ignored by parsers, readable by people."""
        eta = "unknown" if self.eta_s is None else str(math.ceil(self.eta_s))
        return (
            f": waiting for a replica of {self.model}: phase={self.phase} eta_s={eta} "
            f"waited_s={int(self.waited_s)}\n\n"
        ).encode()


@dataclass(slots=True)
class RequestState:
    """The record of a request in this process. Each stage writes its own measurements."""

    tell_wait: Callable[[ColdWait], Awaitable[None]] | None = None
    """Awaited every `keep_alive_interval_s` while no replica can take the request."""
    write_now: Callable[[bytes], bool] | None = None
    """Sends the next bytes of a stream at once, and returns whether it did; if not, the reply's `stream` is
    to yield them. Empty bytes send nothing, and return whether others would be sent. It may be called while
    `stream` is waited for, and at no other time. None until the first of the stream has been sent, and where
    there is no such way."""
    queued_s: float = 0.0
    """The part of the time before the first token for which no replica could take the request."""
    cached_tokens: int | None = None
    """Prompt tokens that the engine found in its prefix cache, over all sequences. None until its answer has
    ended, and for an operation that generates nothing."""
    prompt_tokens: int | None = None
    """All prompt tokens. None until the answer has ended, and for several sequences."""
    lost: str = ""
    """On an engine replica: which of the data plane's `LOSSES` has ended the answer; "" for none."""
    ttft_s: float | None = None
    """From the arrival to the first event of a stream, or to the whole answer. None for a failure."""
    outcome: Outcome | None = None
    """How the request ended; None until then."""
    refused: bool = False
    """Whether it was refused with 429 or 503, and counted as that."""


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One API call as it arrived, at the ingress or at an engine replica, and the state of it there."""

    operation: Operation
    body: bytes
    """The JSON body, untouched; empty after `release_body`."""
    request_id: str
    arrived: float = field(default_factory=time.perf_counter, compare=False)
    """When the request arrived at the ingress, by this process's `time.perf_counter`, in seconds."""
    wants_stream: bool = False
    """Whether the client asked for a stream: its first byte then shows that the prompt is prefilled."""
    timeout_s: float | None = None
    """How long after its arrival the client wants it to be answered or given up. None for no such wish."""
    trace: TraceContext | None = None
    """The trace that the client has made it a part of."""
    cache_salt: str = field(default="", repr=False)
    """Keeps prompts of clients with different API keys apart in prefix caches; "" where nothing does."""
    prefix: PromptPrefix | None = field(default=None, compare=False, repr=False)
    """At the ingress: what its prompt may share with others; None where it shares nothing."""
    kept: BodyShare | None = field(default=None, compare=False, repr=False)
    """At the ingress: counts the memory of what is kept of a stream to continue it elsewhere."""
    continuation: Continuation | None = None
    """On an engine replica: the delivered part of the answer. The engine sends what comes after it."""
    expected_cached_tokens: int | None = None
    """On an engine replica: the prompt tokens that the ingress expects in its prefix cache, over all
    sequences; None where it expects nothing in particular."""
    state: RequestState = field(default_factory=RequestState, compare=False)
    body_bytes: int = field(init=False, compare=False)
    """The size of the body, also after its release."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "body_bytes", len(self.body))

    @property
    def waited_s(self) -> float:
        """Seconds since the arrival at the ingress."""
        return time.perf_counter() - self.arrived

    def release_body(self) -> None:
        """Let go of the body once an answer has begun: it may be megabytes, and the answer take minutes."""
        object.__setattr__(self, "body", b"")


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
    delivered: DeliveredTokens | None = None
    """The delivered tokens of `stream`. None where another engine could not go on with it."""

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


class Traffic:
    """Hears of the events of one model's requests. This class ignores them; `IngressCounters` counts."""

    def opened(self, request: EngineRequest) -> None:
        """The request has arrived with all of its body."""

    def first_byte(self, request: EngineRequest) -> None:
        """The first event of an answer, or a whole answer, has been sent: `request.state.ttft_s` is known."""

    def rejected(self, request: EngineRequest, error: ApiError) -> None:
        """The request was refused, with 429 or 503, because no replica or no memory could take it."""

    def closed(self, request: EngineRequest) -> None:
        """Nothing more will be sent: `request.state.outcome` is known. Called once for each request."""
