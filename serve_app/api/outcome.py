"""How a request ended, as its client saw it. Error rates count outcomes."""

from __future__ import annotations

from http import HTTPStatus
from typing import Literal

from serve_app.api.errors import DONE, ERROR_EVENT

Outcome = Literal["ok", "rejected", "error", "client_error", "abandoned"]
OUTCOMES: tuple[Outcome, ...] = ("ok", "rejected", "error", "client_error", "abandoned")
"""Answered in full; told to come later (429); failed (5xx, or a stream that ended in an error event or was
cut); wrong in itself (any other 4xx); left by its client before the end."""

_FRAME_END = b"\n\n"


def status_outcome(status: int) -> Outcome:
    """The outcome of a request that was answered with this HTTP status."""
    if status < HTTPStatus.BAD_REQUEST:
        return "ok"
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rejected"
    return "error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "client_error"


def stream_outcome(before: bytes, last: bytes) -> Outcome:
    """The outcome of a stream by its last two chunks, each of whole frames; `before` is empty for only one.

    An engine or a relay that ends a stream with an error sends the error event and `[DONE]` as the last two
    frames. So it is enough to look at two frames, once, when the stream is over. Within the JSON of a frame
    there is no line break, so no text can be mistaken for an event.
    """
    if not last.endswith(DONE):
        return "error"
    rest = last[: -len(DONE)] or before
    start = rest.rfind(_FRAME_END, 0, -len(_FRAME_END))
    return "error" if rest.startswith(ERROR_EVENT, start + len(_FRAME_END) if start >= 0 else 0) else "ok"
