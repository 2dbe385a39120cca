"""Scan a server-sent event stream of chat completion chunks as cheaply as Python allows.

The load client shares the machine with the servers, so frames are searched for a few byte patterns
and never parsed as JSON, except one: the last before `[DONE]`, which carries `usage`. The patterns
are safe: a quote inside a JSON string is escaped, so `"content":` can only be a key.
"""

from __future__ import annotations

import json

_CONTENT = b'"content":'
_FINISHED = (b'"finish_reason":"', b'"finish_reason": "')
_DONE = b"[DONE]"


class StreamError(Exception):
    """A reply that is not a complete, error-free chat completion stream."""


def has_content(frame: bytes) -> bool:
    """Whether a chunk's delta has non-empty text: not null, not the first role-only frame's ""."""
    at = frame.find(_CONTENT)
    if at < 0:
        return False
    at += len(_CONTENT)
    if frame[at : at + 1] == b" ":
        at += 1
    return frame[at : at + 1] == b'"' and frame[at + 1 : at + 2] not in (b'"', b"")


class SseScanner:
    """Follow one reply. `feed` takes bytes cut anywhere; times are seconds on the caller's clock."""

    __slots__ = (
        "_before_done",
        "_rest",
        "arrivals",
        "done",
        "error",
        "first_content_at",
        "last_token_at",
        "longest_gap_s",
    )

    def __init__(self) -> None:
        self.first_content_at: float | None = None
        self.last_token_at: float | None = None
        """Arrival of the last frame with text, or of the frame that says why the reply finished."""
        self.longest_gap_s = 0.0
        """Longest wait between two frames with text."""
        self.arrivals = 0
        """Distinct moments at which text arrived: frames that came together count once."""
        self.done = False
        self.error: bytes | None = None
        self._before_done = b""
        self._rest = b""

    def feed(self, data: bytes, now: float) -> None:
        """Take the next bytes of the body, which arrived at `now`."""
        if b"\r" in data:  # Legal line ends in SSE; never a byte of JSON text, which escapes it.
            data = data.replace(b"\r", b"")
        if self._rest:
            data = self._rest + data
        *frames, self._rest = data.split(b"\n\n")
        for frame in frames:
            self._frame(frame, now)

    def _frame(self, frame: bytes, now: float) -> None:
        if not frame.startswith(b"data:"):
            at = frame.find(b"\ndata:")  # After comment lines (keep-alives) or an `event:` line.
            if at < 0:
                return
            if frame.startswith(b"event: error") and self.error is None:
                self.error = frame
            frame = frame[at + 1 :]
        if has_content(frame):
            if now != self.last_token_at:
                self.arrivals += 1
            if self.last_token_at is None:
                self.first_content_at = now
            elif now - self.last_token_at > self.longest_gap_s:
                self.longest_gap_s = now - self.last_token_at
            self.last_token_at = now
            self._before_done = frame
        elif frame[5:].strip() == _DONE:
            self.done = True
        else:
            self._before_done = frame
            if b'"error":' in frame and self.error is None:
                self.error = frame
        if _FINISHED[0] in frame or _FINISHED[1] in frame:
            self.last_token_at = now

    def completion_tokens(self) -> int:
        """Tokens of the finished reply, from its usage frame. StreamError if it is not complete."""
        if self.error is not None:
            raise StreamError(f"an error in the stream: {self.error[:1000]!r}")
        if not self.done:
            raise StreamError(
                f"the stream ended without [DONE]; its last frame: {self._before_done[:1000]!r}"
            )
        try:
            return int(json.loads(self._before_done[5:])["usage"]["completion_tokens"])
        except (ValueError, KeyError, TypeError):
            raise StreamError(
                f"no usage.completion_tokens in the last frame before [DONE]: {self._before_done[:1000]!r}"
            ) from None
