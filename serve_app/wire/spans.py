"""Spans as plain data, and the name of every span, event and attribute.

Attributes that begin with `gen_ai.` and `http.` have the names of OpenTelemetry's semantic conventions, the
other attributes are Tideserve's. The GenAI conventions have the status Development: a release may rename
them.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
"""The release of the conventions that these names follow."""

# Spans of a request. The root has the name "POST /v1/chat/completions".
RECEIVE = "receive"
QUEUE = "queue"
PICK = "pick"
ATTEMPT = "attempt"
BACKOFF = "backoff"
CONTINUATION = "continuation"
RESPOND = "respond"
# Other traces.
COLD_START = "cold start"
BATCH = "batch"
DECISION = "scaling decision"

# Events.
FIRST_TOKEN = "first_token"  # noqa: S105 no secret
ANSWER = "answer"
PHASE = "phase"

# Attributes of the conventions.
METHOD = "http.request.method"
ROUTE = "http.route"
STATUS_CODE = "http.response.status_code"
ERROR_TYPE = "error.type"
OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_STREAM = "gen_ai.request.stream"
REQUEST_PARAMETERS = {
    "max_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "seed": "gen_ai.request.seed",
    "n": "gen_ai.request.choice.count",
}
"""By the name of the field in a request's body."""
INPUT_MESSAGES = "gen_ai.input.messages"
FIRST_CHUNK_S = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"

# Attributes of Tideserve.
REQUEST_ID = "tideserve.request.id"
KEY = "tideserve.key"
LANE = "tideserve.lane"
OUTCOME = "tideserve.outcome"
LEFT_OUT = "tideserve.trace.stages_left_out"
KEPT = "tideserve.trace.kept_because"
QUEUED_S = "tideserve.queued_s"
REPLICA = "tideserve.replica"
VARIANT = "tideserve.variant"
REASON = "tideserve.pick.reason"
EXPECTED_CACHED = "tideserve.pick.expected_cached_tokens"
IN_FLIGHT = "tideserve.pick.requests_in_flight"
PENDING_TOKENS = "tideserve.pick.pending_prompt_tokens"
MOVES = "tideserve.continuation.moves"
DELIVERED = "tideserve.continuation.delivered_tokens"
DECISION_PREFIX = "tideserve.decision"
PHASE_NAME = "tideserve.phase"
WARM_NODE = "tideserve.warm_node"
BATCH_ID = "tideserve.batch.id"
BATCH_LINES = "tideserve.batch.lines"
BATCH_FAILED = "tideserve.batch.failed_lines"

OPERATION_NAMES = {
    "chat_completions": "chat",
    "responses": "chat",
    "messages": "chat",
    "completions": "text_completion",
    "generate": "text_completion",
    "embeddings": "embeddings",
}
"""The conventions' name of an operation; an operation without one keeps its own."""

Value = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Link:
    """A reference to a span of another trace: 32 and 16 hexadecimal digits."""

    trace_id: str
    span_id: str

    @classmethod
    def parse(cls, traceparent: str) -> Link:
        """Return the link to the span of a valid `traceparent`."""
        _, trace_id, span_id, _ = traceparent.split("-")
        return cls(trace_id, span_id)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened within a span, at a Unix time in nanoseconds."""

    name: str
    at: int
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """One finished span. Times are Unix times in nanoseconds."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    """"" for the root of a trace."""
    start: int
    end: int
    attributes: Attributes = field(default_factory=dict)
    events: Sequence[Event] = ()
    links: Sequence[Link] = ()
    kind: str = "INTERNAL"
    """`INTERNAL`, `CLIENT` or `SERVER`."""
    error: str = ""
    """Why the span failed; "" if it did not fail."""
    remote_parent: bool = False
    tracestate: str = ""
    """The client's `tracestate` header, which every span of a trace has (W3C Trace Context)."""


def new_span_id() -> str:
    """Return a random span id: 16 hexadecimal digits."""
    return secrets.token_hex(8)


def cold_start_root(replica: str) -> Link:
    """Return the root of the trace of a replica's cold start.

    The ids follow from the replica's id. So an ingress replica can link to the trace without a message.
    """
    return _root(f"cold start of {replica}")


def batch_root(batch_id: str) -> Link:
    """Return the root of the trace of a batch. Its lines link to it before it is sent."""
    return _root(batch_id)


def _root(of: str) -> Link:
    digits = hashlib.sha256(of.encode()).hexdigest()
    return Link(digits[:32], digits[32:48])
