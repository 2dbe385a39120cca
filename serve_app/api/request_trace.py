"""The trace of one request: notes while it runs, and spans at its end.

The event loop only makes notes, where a stage of the request begins and ends. When the request has ended, it
is known whether the trace is kept, and a thread makes spans of the notes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import msgspec

from serve_app.api.errors import NOT_JSON
from serve_app.api.prompt_prefix import PromptFields
from serve_app.api.trace import IGNORED, Stage, Trace, TraceContext, Traced
from serve_app.wire import spans as names
from serve_app.wire.spans import Attributes, Event, Link, Span, Value, new_span_id

SHOW_HEADER = b"x-tideserve-trace"
"""A request with this header and the value 1 gets its trace as comments of its stream: with the first event,
after each move, and at the end."""
SHOWN = b": trace "
"""The beginning of such a comment. A JSON document follows."""
MOST_STAGES = 128
"""The bound on one trace: a stream may lose any number of replicas."""
_MOST_READ_BYTES = 64 << 10
"""Parameters are read only from a body that is not larger: reading takes up to 50 us."""
_MOST_PROMPT_BYTES = 16 << 10


class RecordedStage(Stage):
    """Keeps the notes of one stage, with times by `perf_counter`."""

    __slots__ = ("attributes", "ended", "error", "events", "links", "name", "outcome", "span_id", "started")
    recorded = True

    def __init__(self, name: str, started: float, attributes: Attributes | None = None) -> None:
        self.name = name
        self.span_id = new_span_id()
        self.started = started
        self.ended: float | None = None
        self.attributes: dict[str, Value] = dict(attributes or {})
        self.events: list[tuple[str, float, Attributes]] = []
        self.links: list[Link] = []
        self.outcome = self.error = ""

    def note_event(self, name: str, attributes: Attributes | None = None) -> None:
        self.events.append((name, time.perf_counter(), attributes or {}))

    def note_phase(self, phase: str) -> None:
        if len(self.events) < MOST_STAGES and (
            not self.events or self.events[-1][2].get(names.PHASE_NAME) != phase
        ):
            self.note_event(names.PHASE, {names.PHASE_NAME: phase})

    def link(self, to: Link) -> None:
        self.links.append(to)

    def end(self, outcome: str = "", error: str = "", attributes: Attributes | None = None) -> None:
        if self.ended is None:
            self.ended = time.perf_counter()
            self.outcome, self.error = outcome, error
            self.attributes.update(attributes or {})


@dataclass(slots=True, eq=False)
class RequestTrace(Trace):
    """Keeps the notes of one request."""

    context: TraceContext
    """The trace, the id of the root span, and whether the trace is sampled."""
    parent_id: str
    """The id of the client's span; "" without one."""
    started: float
    exported: bool
    """Whether a collector may get the trace."""
    shown: bool
    """Whether the client asked for the trace."""
    record_prompts: bool = False
    links: Sequence[Link] = ()
    status: int | None = None
    """The HTTP status of the answer; None if the client left before."""
    attributes: dict[str, Value] = field(default_factory=dict)
    stages: list[RecordedStage] = field(default_factory=list)
    ended: float | None = None
    failed: str = ""
    """Why the request failed; "" if it did not."""
    late: bool = False
    """Whether the first token of a stream came after the target."""
    path: str = ""
    _left_out: int = 0
    _late_after_s: float | None = None
    _request: Traced | None = None
    _unix_ns: int = field(default_factory=time.time_ns)
    _perf: float = field(default_factory=time.perf_counter)

    @property
    def sampled(self) -> bool:
        """Whether the trace was sampled at its head. vLLM makes spans only then."""
        return self.context.sampled

    def begin(self, name: str, attributes: Attributes | None = None, *, since: float | None = None) -> Stage:
        if self.stages:
            self.stages[0].end()  # the request has been received
        if len(self.stages) >= MOST_STAGES:
            self._left_out += 1
            return IGNORED
        started = time.perf_counter() if since is None else since
        if self.stages and (last := self.stages[-1]).name == names.QUEUE and last.ended is not None:
            started = max(started, last.ended)
        stage = RecordedStage(name, started, attributes)
        self.stages.append(stage)
        return stage

    def note_status(self, status: int) -> None:
        self.status = status
        if status >= HTTPStatus.BAD_REQUEST:
            self.begin(names.RESPOND)

    def note_request(self, request: Traced, document: bytes) -> None:
        self._request = request
        self.attributes |= {
            names.ROUTE: self.path,
            names.REQUEST_ID: request.request_id,
            names.LANE: request.caller.lane,
            names.OPERATION: names.OPERATION_NAMES.get(request.operation, request.operation),
            names.PROVIDER: "vllm",
            names.REQUEST_STREAM: request.wants_stream,
        }
        if request.caller.key:
            self.attributes[names.KEY] = request.caller.key
        if len(document) <= _MOST_READ_BYTES:
            with suppress(*NOT_JSON):  # the engine replica answers it
                self.attributes |= _parameters(document)
                if self.record_prompts:
                    self.attributes |= _prompt(document)

    def note_model(self, model: str, ttft_target_s: float) -> None:
        self.attributes[names.REQUEST_MODEL] = model
        if self._request is not None and self._request.wants_stream:
            self._late_after_s = ttft_target_s

    def for_engine(self, client: TraceContext | None) -> TraceContext | None:
        if not self.exported:  # nobody would see the engine's parent
            return client
        attempt = next((stage for stage in reversed(self.stages) if stage.name == names.ATTEMPT), None)
        return self.context if attempt is None else self.context.child(attempt.span_id)

    def comment(self) -> bytes:
        if not self.shown:
            return b""
        now = time.perf_counter()
        document = {
            "trace_id": self.context.trace_id,
            "seconds": round(now - self.started, 6),
            "spans": [
                {
                    "name": stage.name,
                    "start": round(stage.started - self.started, 6),
                    "end": round((stage.ended or now) - self.started, 6),
                    "attributes": {**stage.attributes, **_outcome(stage)},
                    "events": [[name, round(at - self.started, 6), said] for name, at, said in stage.events],
                }
                for stage in self.stages
            ],
        }
        return SHOWN + msgspec.json.encode(document) + b"\n\n"

    def finish(self) -> None:
        """End the trace now, with all its stages."""
        self.ended = time.perf_counter()
        self.attributes[names.METHOD] = "POST"
        request, self._request = self._request, None  # no reference cycle
        left = request is not None and request.outcome == "abandoned"
        for stage in self.stages:
            stage.end("abandoned" if left else "")
        outcome = None
        if request is not None:
            outcome = request.outcome
            known: Mapping[str, Value | None] = {
                names.OUTCOME: outcome,
                names.QUEUED_S: round(request.queued_s, 6) or None,
                names.FIRST_CHUNK_S: request.ttft_s,
                names.INPUT_TOKENS: request.counts.prompt,
                names.CACHED_TOKENS: request.counts.cached,
            }
            self.attributes |= {name: value for name, value in known.items() if value is not None}
            self.late = self._late_after_s is not None and (request.ttft_s or 0.0) > self._late_after_s
        if self.status is not None:
            self.attributes[names.STATUS_CODE] = self.status
        if self.status is not None and self.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self.failed = str(self.status)
        elif outcome == "error":
            self.failed = "stream_failed"
        if self.failed:
            self.attributes[names.ERROR_TYPE] = self.failed
        if self._left_out:
            self.attributes[names.LEFT_OUT] = self._left_out
        if kept := self.kept_because():
            self.attributes[names.KEPT] = kept

    def kept_because(self) -> list[str]:
        """Return the reasons to keep a finished trace that was not sampled at its head.

        429 and other errors of clients are no reason, because they come in floods. Neither is the queue for
        requests of the lane `background`, which wait for a free place.
        """
        found = {names.QUEUE: "queued", names.CONTINUATION: "moved", names.BACKOFF: "retried"}
        if self.attributes.get(names.LANE) == "background":
            del found[names.QUEUE]
        reasons = [found[stage.name] for stage in self.stages if stage.name in found]
        if self.failed:
            reasons.append("failed")
        if self.late:
            reasons.append("late")
        return list(dict.fromkeys(reasons))

    @property
    def kept(self) -> bool:
        """Whether a finished trace goes to the collector."""
        return self.exported and (self.sampled or names.KEPT in self.attributes)

    def spans(self) -> list[Span]:
        """Return the spans of a finished trace, the root first."""
        assert self.ended is not None
        root = Span(
            f"POST {self.attributes.get(names.ROUTE, '')}".strip(),
            self.context.trace_id,
            self.context.span_id,
            self.parent_id,
            self._unix(self.started),
            self._unix(self.ended),
            self.attributes,
            links=self.links,
            kind="SERVER",
            error=self.failed,
            remote_parent=bool(self.parent_id),
            tracestate=self.context.tracestate,
        )
        return [root, *(self._span(stage) for stage in self.stages)]

    def _span(self, stage: RecordedStage) -> Span:
        assert stage.ended is not None
        return Span(
            stage.name,
            self.context.trace_id,
            stage.span_id,
            self.context.span_id,
            self._unix(stage.started),
            self._unix(max(stage.started, stage.ended)),
            {**stage.attributes, **_outcome(stage)},
            [Event(name, self._unix(at), said) for name, at, said in stage.events],
            stage.links,
            "CLIENT" if stage.name == names.ATTEMPT else "INTERNAL",
            stage.error,
            tracestate=self.context.tracestate,
        )

    def _unix(self, at: float) -> int:
        return self._unix_ns + round((at - self._perf) * 1e9)


class _Parameters(msgspec.Struct):
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    temperature: Any = None
    top_p: Any = None
    top_k: Any = None
    seed: Any = None
    n: Any = None


_read_parameters = msgspec.json.Decoder(_Parameters)
_read_prompt = msgspec.json.Decoder(PromptFields)


def _parameters(body: bytes) -> dict[str, Value]:
    found = _read_parameters.decode(body)
    given = (found.max_tokens, found.max_completion_tokens, found.max_output_tokens)
    found.max_tokens = next((most for most in given if most is not None), None)
    values = {name: getattr(found, field) for field, name in names.REQUEST_PARAMETERS.items()}
    # A larger number could not be sent, and the spans that are sent with it would be lost.
    return {name: value for name, value in values.items() if isinstance(value, float) or _is_int64(value)}


def _is_int64(value: Any) -> bool:
    return isinstance(value, int) and -(1 << 63) <= value < 1 << 63


def _prompt(body: bytes) -> dict[str, Value]:
    found = _read_prompt.decode(body)
    text = bytes(found.messages) or bytes(found.prompt) or bytes(found.input)
    return {names.INPUT_MESSAGES: text[:_MOST_PROMPT_BYTES].decode("utf-8", "replace")} if text else {}


def _outcome(stage: RecordedStage) -> dict[str, Value]:
    return {names.OUTCOME: stage.outcome} if stage.outcome else {}
