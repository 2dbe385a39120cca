"""The trace of a request: its W3C Trace Context (`traceparent` and `tracestate`), and notes of its stages.

Without traces of its own (`api.request_trace`) this process forwards the context unchanged: the engine's span
becomes a child of the client's span.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from serve_app.settings.caller import Caller
from serve_app.wire.data_plane import TokenCounts
from serve_app.wire.spans import Attributes, Link

_PARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_VERSION = b"ff"
_SAMPLED = 0x01
_ENTRY = re.compile(
    rb"(?:[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"  # a tenant's key
    rb"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
_MOST_ENTRIES = 32


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A valid trace context, in version 00 of the standard."""

    traceparent: str
    """55 characters: version, id of the trace, id of the client's span, flags."""
    tracestate: str = ""
    """At most 32 entries, each of at most 513 characters; "" if there is none."""

    @property
    def trace_id(self) -> str:
        """The id of the trace: 32 hexadecimal digits."""
        return self.traceparent[3:35]

    @property
    def span_id(self) -> str:
        """The id of the span: 16 hexadecimal digits."""
        return self.traceparent[36:52]

    @property
    def sampled(self) -> bool:
        """Whether the trace was sampled by its client."""
        return bool(int(self.traceparent[53:55], 16) & _SAMPLED)

    def child(self, span_id: str) -> TraceContext:
        """Return the context for a receiver whose spans are children of the span `span_id`."""
        return TraceContext(f"{self.traceparent[:36]}{span_id}{self.traceparent[52:]}", self.tracestate)

    def fields(self) -> dict[str, str]:
        """Return the values by header name."""
        given = {"traceparent": self.traceparent, "tracestate": self.tracestate}
        return {name: value for name, value in given.items() if value}

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers of an HTTP request."""
        return [(name.encode(), value.encode()) for name, value in self.fields().items()]

    @classmethod
    def of(cls, headers: Iterable[tuple[bytes, bytes]]) -> TraceContext | None:
        """Return the trace context in the headers of a request, whose names are in lower case.

        None without exactly one valid `traceparent`. An invalid `tracestate` is dropped as a whole, and the
        trace continues without it (https://www.w3.org/TR/trace-context/).
        """
        parents: list[bytes] = []
        states: list[bytes] = []
        for name, value in headers:
            if name == b"traceparent":
                parents.append(value)
            elif name == b"tracestate":
                states.append(value)
        parent = _parent(parents[0]) if len(parents) == 1 else None
        return None if parent is None else cls(parent, _state(states))


class Traced(Protocol):
    """A request as its trace sees it: `engine_client.EngineRequest`."""

    operation: Any
    request_id: str
    wants_stream: bool
    caller: Caller
    outcome: Any
    queued_s: float
    ttft_s: float | None
    counts: TokenCounts


class Stage:
    """One stage of a request. This class ignores its notes; `RecordedStage` keeps them."""

    recorded = False

    def note_event(self, name: str, attributes: Attributes | None = None) -> None:
        """Note something that happens now."""

    def note_phase(self, phase: str) -> None:
        """Note the phase of a cold start, if it is another than before."""

    def link(self, to: Link) -> None:
        """Link to a span of another trace."""

    def end(self, outcome: str = "", error: str = "", attributes: Attributes | None = None) -> None:
        """End the stage now. Only the first call counts."""


class Trace:
    """The trace of a request. This class ignores all notes; `RequestTrace` keeps them."""

    def begin(self, name: str, attributes: Attributes | None = None, *, since: float | None = None) -> Stage:
        """Begin a stage, now or at `since` by `perf_counter`, but not before the end of a queue's stage."""
        return IGNORED

    def note_request(self, request: Traced, document: bytes) -> None:
        """Note a request, and the parameters in its `document`: the JSON of its body."""

    def note_model(self, model: str, ttft_target_s: float) -> None:
        """Note the model that runs the request, and the target that its first token should meet."""

    def for_engine(self, client: TraceContext | None) -> TraceContext | None:
        """Return the trace context for the engine; by default that of the `client`."""
        return client

    def comment(self) -> bytes:
        """Return the SSE comment with the trace so far, if the client asked for it; else b""."""
        return b""


IGNORED = Stage()
UNTRACED = Trace()


def _parent(value: bytes) -> str | None:
    found = _PARENT.fullmatch(value.strip(b" \t"))
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == _NO_VERSION or not trace.strip(b"0") or not span.strip(b"0"):
        return None
    if version != b"00":  # a later version: forward only the parts that version 00 has
        flags, more = b"%02x" % (int(flags, 16) & _SAMPLED), None
    return None if more is not None else (b"00-%b-%b-%b" % (trace, span, flags)).decode("ascii")


def _state(values: list[bytes]) -> str:
    entries = [entry.strip(b" \t") for entry in b",".join(values).split(b",")]
    entries = [entry for entry in entries if entry]  # entries may be empty
    keys = {entry.partition(b"=")[0] for entry in entries}
    valid = all(map(_ENTRY.fullmatch, entries)) and len(keys) == len(entries) <= _MOST_ENTRIES
    return b",".join(entries).decode("ascii") if valid else ""
