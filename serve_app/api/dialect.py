"""What differs between the APIs that clients speak: errors, the ends of streams, and events before a stream.

Errors travel between replicas in OpenAI's shape (`ApiError`). A dialect translates them where they leave for
the client. Streams are relayed unparsed, so a dialect finds their ends in whole SSE frames.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Protocol

import msgspec
from starlette.responses import Response
from starlette.types import Scope

from serve_app.api.errors import DONE, ERROR_EVENT, TRACE_ID, ApiError

JSON = "application/json"
EVENT_STREAM = "text/event-stream"


@dataclass(frozen=True, slots=True)
class ColdWait:
    """The progress of a request's wait for a replica, at one moment. Times in seconds."""

    model: str
    phase: str
    """The phase of the replica nearest to readiness."""
    eta_s: float | None
    """The time until that replica is expected to be ready; None if no start was measured."""
    waited_s: float
    reason: str = ""
    """Why no replica can start, if none can."""
    place: int = 0
    """The place in the line of models that wait for room; 0 if the model is in no line."""

    def comment(self) -> bytes:
        """Return the SSE comment for the client: parsers ignore it, and people can read it."""
        eta = "unknown" if self.eta_s is None else str(math.ceil(self.eta_s))
        why = f": {' '.join(self.reason.split())}\n" if self.reason else ""
        place = f" place={self.place}" if self.place else ""
        return (
            f": waiting for a replica of {self.model}: phase={self.phase} eta_s={eta} "
            f"waited_s={int(self.waited_s)}{place}\n{why}\n"
        ).encode()


class Asked(Protocol):
    """A request as its client knows it: `EngineRequest`, or `EngineCall` on an engine replica."""

    @property
    def request_id(self) -> str: ...
    @property
    def asked_model(self) -> str: ...
    @property
    def waited_s(self) -> float: ...


class Dialect:
    """OpenAI's completions. All endpoints without a dialect of their own use it too."""

    id_header = ""
    """The header in which clients look for the request's id, beside `X-Request-ID`."""
    error_frame = b'data: {"error"'
    """The start of the frame in which vLLM's handler reports an error."""
    prelude: tuple[bytes, ...] = ()
    """The starts of frames that vLLM's handler sends before the engine has generated anything."""
    answered: tuple[bytes, ...] = (DONE,)
    """The possible starts of the last frame of a whole answer."""
    failure = DONE
    """The start of the last frame of an answer that failed."""
    usage_mark: bytes | None = b'"choices":[],'  # inside a JSON string the quotes would be escaped
    """A part of the frame that gets the latency figures of its request. None if clients know all fields."""

    def error_body(self, error: ApiError, request_id: str) -> bytes:
        return error.body()

    def last_frames(self, error: ApiError, request: Asked, sent: bytes = b"") -> bytes:
        """Return the frames that end a stream with `error`. `sent` has the last frames sent before."""
        return error.last_frames()

    def ends(self, frames: bytes) -> bool:
        """Return whether the last of these whole frames is the last of a stream."""
        return last_frame(frames).startswith((*self.answered, self.failure))

    def failed(self, before: bytes, last: bytes) -> bool:
        """Return whether a stream ended without an answer, by its last two chunks of whole frames.

        `before` is empty for a stream of one chunk. Frames are checked when the stream is over. The JSON of a
        frame has no line break, so no text can be mistaken for an event.
        """
        if not last_frame(last).startswith(self.answered):
            return True
        # `[DONE]` also follows an error event.
        return self.answered == (DONE,) and last_frame(last[: -len(DONE)] or before).startswith(ERROR_EVENT)

    def has_usage(self, frame: bytes) -> bool:
        """Return whether `frame` gets the latency figures of its request."""
        return self.usage_mark is not None and self.usage_mark in frame

    def waiting(self, request: Asked, wait: ColdWait, sent: bytes) -> bytes:
        """Return the frames that tell a client of its wait. `sent` has the last frames sent before."""
        return wait.comment()

    def after_wait(self, frames: bytes) -> bytes:
        """Return the first frames of a stream without those that `waiting` has sent in their place."""
        return frames


class _Responses(Dialect):
    """OpenAI's Responses. Events have names, and the last one has the response's end in its name."""

    prelude = (b"event: response.created\n", b"event: response.in_progress\n")
    answered = (b"event: response.completed\n", b"event: response.incomplete\n")
    failure = b"event: response.failed\n"
    usage_mark = None

    def last_frames(self, error: ApiError, request: Asked, sent: bytes = b"") -> bytes:
        """Return the events `error` and `response.failed`.

        OpenAI's clients raise an exception for the first, because its data have the field `error`. Codex
        reads only the second.
        """
        number = _sequence_number(sent) + 1
        told = msgspec.json.decode(error.body())["error"]
        flat = {name: told[name] for name in ("code", "message", "param")}
        failed = _response(request, "failed") | {"error": _response_error(error)}
        return _event("error", number, {**flat, "error": told}) + _event(
            "response.failed", number + 1, {"response": failed}
        )

    def waiting(self, request: Asked, wait: ColdWait, sent: bytes) -> bytes:
        """Return a comment and an event, because Codex's idle timeout counts events, and no comments.

        OpenAI's clients raise an exception for any event before `response.created`. After `response.created`,
        every client accepts repeated `response.queued` events. Within an answer, the empty output of
        `response.queued` would replace the output that Node's client has read. So OpenAI's undocumented
        `keepalive` tells of a wait there.
        """
        queued = {"response": _response(request, "queued")}
        if not sent:
            events = _event("response.created", 0, queued) + _event("response.queued", 0, queued)
        elif last_frame(sent).startswith(b"event: response.queued\n"):
            events = _event("response.queued", 0, queued)
        else:
            events = _event("keepalive", _sequence_number(sent), {})
        return wait.comment() + events

    def after_wait(self, frames: bytes) -> bytes:
        return frames.partition(b"\n\n")[2] if frames.startswith(self.prelude[0]) else frames


_SEQUENCE_NUMBER = re.compile(rb'"sequence_number":(\d+)')


def _sequence_number(sent: bytes) -> int:
    """Return the number of the last of the frames that were sent; -1 without any."""
    found = _SEQUENCE_NUMBER.findall(last_frame(sent))
    return int(found[-1]) if found else -1


def response_id(request_id: str) -> str:
    """Return the id of the response to a request: the same on each replica that answers it."""
    return f"resp_{request_id}"


def _response(request: Asked, status: str) -> dict[str, Any]:
    """Return a response without output, with all fields that OpenAI's schema requires."""
    return {
        "id": response_id(request.request_id),
        "object": "response",
        "created_at": int(time.time() - request.waited_s),
        "status": status,
        "model": request.asked_model,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        **dict.fromkeys(("error", "incomplete_details", "instructions", "metadata", "temperature", "top_p")),
    }


def _response_error(error: ApiError) -> dict[str, str]:
    """Return the error of a failed response, with a code of OpenAI's that clients act on.

    Codex repeats a request after `server_error` and `rate_limit_exceeded`, for which it reads the delay from
    the message. It repeats no request after the other codes.
    """
    code, message = "server_error", error.message
    if error.status == HTTPStatus.TOO_MANY_REQUESTS:
        code = "rate_limit_exceeded"
        message += f" Please try again in {error.headers.get('Retry-After', 1)}s."
    elif error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
        code = error.code if error.code == "context_length_exceeded" else "invalid_prompt"
    return {"code": code, "message": message}


def _event(name: str, number: int, fields: Mapping[str, Any]) -> bytes:
    data = msgspec.json.encode({"type": name, "sequence_number": number, **fields})
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def last_frame(frames: bytes) -> bytes:
    """Return the last of several whole frames."""
    start = frames.rfind(b"\n\n", 0, -2)
    return frames[start + 2 if start >= 0 else 0 :]


class _Messages(Dialect):
    """Anthropic's Messages. Its clients find an event by its name, and ignore `ping` anywhere."""

    id_header = "Request-Id"
    answered = (b"event: message_stop\n",)
    failure = ERROR_EVENT
    usage_mark = None

    def error_body(self, error: ApiError, request_id: str) -> bytes:
        message = error.message
        if error.param is not None and error.param not in message:
            message = f"{error.param}: {message}"
        kind = _MESSAGE_ERRORS.get(
            error.status, "invalid_request_error" if error.status < 500 else "api_error"
        )
        found = {"type": kind, "message": message}
        if trace_id := TRACE_ID.get():
            found["trace_id"] = trace_id
        return msgspec.json.encode({"type": "error", "error": found, "request_id": request_id})

    def last_frames(self, error: ApiError, request: Asked, sent: bytes = b"") -> bytes:
        return ERROR_EVENT + b"data: " + self.error_body(error, request.request_id) + b"\n\n"

    def waiting(self, request: Asked, wait: ColdWait, sent: bytes) -> bytes:
        # For clients whose idle timeout counts events.
        return wait.comment() + b'event: ping\ndata: {"type":"ping"}\n\n'


_MESSAGE_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""Anthropic's type of an error, by its status. Any other is the client's fault or the server's."""

COMPLETIONS = Dialect()
RESPONSES = _Responses()
MESSAGES = _Messages()
_DIALECTS = {"responses": RESPONSES, "messages": MESSAGES, "count_tokens": MESSAGES}
"""The dialects of operations, whose names are also the last parts of their paths."""


def dialect_of(operation: str) -> Dialect:
    """Return the dialect that clients of `operation` speak."""
    return _DIALECTS.get(operation, COMPLETIONS)


def dialect_at(path: str) -> Dialect:
    """Return the dialect of the endpoint at `path` (`route_path`)."""
    return _DIALECTS.get(path.rpartition("/")[2], COMPLETIONS)


def route_path(scope: Scope) -> str:
    """Return the path below the application's `route_prefix`, as routes see it."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if path.startswith(f"{root}/") else path


def error_response(error: ApiError, scope: Scope) -> Response:
    """Return an error that was raised outside of an engine's call, in the dialect of its path."""
    request_id: str = scope.get("state", {}).get("request_id", "")
    body = dialect_at(route_path(scope)).error_body(error, request_id)
    return Response(body, error.status, headers=error.headers, media_type=JSON)
