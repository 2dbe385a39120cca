"""The HTTP API's view of an engine: requests, replies and their state."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar, get_args

from serve_app.api.body_memory import BodyShare
from serve_app.api.dialect import ColdWait
from serve_app.api.errors import ApiError
from serve_app.api.prompt_prefix import PromptPrefix
from serve_app.api.trace import UNTRACED, Trace, TraceContext
from serve_app.settings.caller import ANYONE, Caller
from serve_app.settings.model_names import Adapter
from serve_app.wire.data_plane import Call, Continuation, Prefix, TokenCounts
from serve_app.wire.signals import MOST_COUNTED_BYTES

Operation = Literal[
    "chat_completions", "completions", "responses", "messages", "embeddings", "score", "rerank", "pooling",
    "classify", "transcriptions", "translations", "tokenize", "detokenize", "count_tokens", "generate",
]  # fmt: skip
OPERATIONS: tuple[Operation, ...] = get_args(Operation)
GPU_OPERATIONS = frozenset(OPERATIONS) - {"tokenize", "detokenize", "count_tokens"}
"""The operations that use a GPU."""
GENERATING = ("chat_completions", "completions", "responses", "messages", "generate")
"""The operations that generate tokens after a prompt of text, which may share a prefix with others."""
SPEECH_OPERATIONS = frozenset[Operation](("transcriptions", "translations"))
"""The operations whose bodies are those of `api.upload`."""
_AUDIO_BYTES = 80
"""So many bytes of audio count as one byte of a prompt's text. A second of MP3 often has 16,000 bytes. Models
read up to 50 tokens in it, as in 200 bytes of English."""

Outcome = Literal["ok", "rejected", "error", "client_error", "abandoned"]
"""How a request ended for its client. Error rates count outcomes. `ok`: answered in full. `rejected`: refused
with 429. `error`: 5xx, or a stream that was cut or ended in an error event. `client_error`: any other 4xx,
such as an invalid request or its client's deadline. `abandoned`: the client left before the end."""
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


class Watch(Protocol):
    """Reads and counts an answer: `AnswerWatch`."""

    def note(self, data: bytes, /) -> None: ...
    def fail(self) -> None: ...
    def count(self, request: EngineRequest, /) -> None: ...


@dataclass(slots=True)
class EngineRequest:
    """An API request in an ingress replica, from its body to its outcome. Each stage writes its fields."""

    operation: Operation
    body: bytes
    """The JSON body, untouched, or a body of `api.upload`; empty after `release_body`."""
    request_id: str
    arrived: float = field(default_factory=time.perf_counter, compare=False)
    """When the request arrived, by `time.perf_counter`, in seconds."""
    wants_stream: bool = False
    """Whether the client asked for a stream, whose first byte shows that the prompt is prefilled."""
    timeout_s: float | None = None
    """The client's deadline, in seconds after the arrival. None if the client gave none."""
    context: TraceContext | None = None
    """The trace context that the engine's span has: of the request's own trace, or of the client."""
    cache_salt: str = field(default="", repr=False)
    """Separates clients with different API keys in prefix caches; "" if they share caches."""
    prefix: PromptPrefix | None = field(default=None, compare=False, repr=False)
    """The hashes of the prompt's beginnings; None if it shares nothing."""
    kept: BodyShare | None = field(default=None, compare=False, repr=False)
    """Counts the memory kept to continue the stream elsewhere."""
    model: str = ""
    """The name of its model, without alias or adapter."""
    alias: str = ""
    """The name by which the client asked for the model; "" for the model's own name."""
    caller: Caller = ANYONE
    """Who sent it: decides its lane, its share and whose usage it is."""
    adapter: Adapter | None = None
    """The LoRA adapter that the client chose by `model`; None for the model itself."""
    repeated_bytes: int = field(default=0, compare=False)
    """The bytes of its body that an engine reads again; see `body.repeated_bytes`."""
    trace: Trace = field(default=UNTRACED, compare=False)
    """Each stage notes when it begins and ends."""
    tell_wait: Callable[[ColdWait], Awaitable[None]] | None = field(default=None, compare=False)
    """Awaited every `keep_alive_interval_s` while the client waits for output."""
    silent_since: float | None = field(default=None, compare=False)
    """Since when the client waits for output; None if it has got some since then."""
    told_at: float | None = field(default=None, compare=False)
    """When the client was last told that it waits; None if not since `silent_since`."""
    write_now: Callable[[bytes], bool] | None = field(default=None, compare=False)
    """As `EngineCall.write_now`, to the client. Without bytes, it returns whether the client still reads.
    None on other servers than uvicorn."""
    queued_s: float = field(default=0.0, compare=False)
    """The time before the first token in which no replica could take the request, unless one was lost."""
    lost_s: float = field(default=0.0, compare=False)
    """The time before the first token on lost replicas, and after a loss until another took the request."""
    charged_tokens: int | None = field(default=None, compare=False)
    """The tokens charged to the request's key when it left the queue; None if it was not queued, and once the
    true number is charged."""
    counts: TokenCounts = field(default_factory=TokenCounts, compare=False)
    """The tokens of the answer, unknown until it has ended. `output` also has the delivered tokens of a
    stream that was cut, or its events if no engine could continue it."""
    left_engine: bool = field(default=False, compare=False)
    """Whether the client left, or its deadline came, while an engine worked on the answer."""
    ttft_s: float | None = field(default=None, compare=False)
    """The time from arrival to the first event of a stream, or to the whole answer. None for a failure."""
    outcome: Outcome | None = field(default=None, compare=False)
    """How the request ended; None until then."""
    refused: bool = field(default=False, compare=False)
    """Whether the request was refused with 429 or 503, and counted so."""
    conversation: str = field(default="", compare=False)
    """The key by which its version is chosen; "" for its own id."""
    version: str = field(default="", compare=False)
    """The version of the model that answers; "" for a model without versions."""
    watch: Watch | None = field(default=None, compare=False)
    """Counts the answer for the comparison of versions; None without one."""
    body_bytes: int = field(init=False, compare=False)
    """The size of the body, also after its release."""

    def __post_init__(self) -> None:
        self.body_bytes = len(self.body)

    @property
    def asked_model(self) -> str:
        """The name by which the client asked for the model."""
        return self.alias or self.model

    @property
    def adapter_name(self) -> str:
        """The name of its adapter; "" for the model itself."""
        return "" if self.adapter is None else self.adapter.name

    @property
    def is_background(self) -> bool:
        return self.caller.lane == "background"

    @property
    def prompt_bytes(self) -> int:
        """The bytes of text that have about as many tokens as its prompt."""
        if self.operation in SPEECH_OPERATIONS:
            return self.body_bytes // _AUDIO_BYTES
        return self.body_bytes + self.repeated_bytes

    @property
    def counted_bytes(self) -> int:
        """The bytes of its body that count in the signals for the policy."""
        return min(self.body_bytes, MOST_COUNTED_BYTES)

    @property
    def waited_s(self) -> float:
        """Seconds since the arrival."""
        return time.perf_counter() - self.arrived

    def lose(self, seconds: float) -> None:
        if self.ttft_s is None:
            self.lost_s += seconds

    def release_body(self) -> None:
        """Free the body once an answer has begun: it may have megabytes, and the answer may take minutes."""
        self.body = b""

    def message(
        self,
        stream: int,
        body: bytes,
        continuation: Continuation | None = None,
        expected_cached_tokens: int | None = None,
        lane_knob: float | None = None,
    ) -> Call:
        """Return the message to an engine replica.

        Args:
            body: The body, also after its release here.
            stream, continuation, expected_cached_tokens, lane_knob: See `Call`.
        """
        context, prefix = self.trace.for_engine(self.context), self.prefix
        return Call(
            stream,
            self.operation,
            body,
            self.request_id,
            self.waited_s,
            self.queued_s,
            continuation,
            "" if context is None else context.traceparent,
            "" if context is None else context.tracestate,
            expected_cached_tokens,
            None if prefix is None else Prefix(list(prefix.blocks), prefix.end),
            self.cache_salt,
            self.caller.key,
            self.caller.lane,
            self.caller.weight,
            lane_knob,
            self.alias,
            self.adapter,
            self.lost_s,
            self.caller.budgets,
        )


@dataclass(slots=True)
class DeliveredTokens:
    """The delivered tokens of one stream on its engine, until a message takes them to the ingress."""

    tokens: int = 0
    """The number of all delivered tokens."""
    outputs: int = 0
    """The number of calls of `note`: at least one for each output of the engine."""
    _noted: list[tuple[int, Sequence[int]]] = field(default_factory=list)

    def note(self, sequence: int, ids: Sequence[int]) -> None:
        """Note the tokens of one output of vLLM for a sequence. Their events have all left."""
        self.outputs += 1
        self.tokens += len(ids)
        self._noted.append((sequence, ids))

    def take(self) -> list[tuple[int, Sequence[int]]]:
        """Return the tokens noted since the last call: a pair of sequence and ids for each call of `note`."""
        noted, self._noted = self._noted, []
        return noted


@dataclass(frozen=True, slots=True)
class EngineReply:
    """An engine's answer: either a whole JSON `body`, or an event `stream` of whole SSE frames.

    The reply is made only when the first chunk of `stream` is there. So an earlier failure has its own HTTP
    status.
    """

    status: int
    body: bytes = b""
    stream: AsyncIterator[bytes] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    delivered: DeliveredTokens | None = None
    """The delivered tokens of `stream`. None if no other engine could continue it."""


R_contra = TypeVar("R_contra", contravariant=True)


class EngineClient(Protocol[R_contra]):
    """Runs calls: an ingress replica runs each `EngineRequest`, and an engine replica each `EngineCall`."""

    def call(self, request: R_contra, /) -> AbstractAsyncContextManager[EngineReply]:
        """Run `request`. Leaving the context, or cancelling, frees its sequences in the engine.

        Raises:
            ApiError: no engine could take the request, or the engine was lost.
        """
        ...


class Traffic:
    """Gets the events of one model's requests. This class ignores them; `IngressCounters` counts them."""

    def opened(self, request: EngineRequest) -> None:
        """The request has arrived with all of its body."""

    def first_byte(self, request: EngineRequest) -> None:
        """The first event of an answer, or a whole answer, has been sent: `request.ttft_s` is known."""

    def rejected(self, request: EngineRequest, error: ApiError) -> None:
        """The request was refused, with 429 or 503, because no replica or no memory could take it."""

    def closed(self, request: EngineRequest) -> None:
        """Nothing more will be sent: `request.outcome` is known. Called once for each request."""
