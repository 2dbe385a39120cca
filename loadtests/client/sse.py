"""Scans the bytes of a streamed answer as cheaply as Python can.

Frames are searched for a few byte patterns; only the usage and errors are parsed. The patterns are
safe: within a JSON string a quote is escaped, so `"text":` can only be a key.

A frame is a piece of the answer if it carries generated tokens. A token that ends within a character has
empty text and is a token all the same, so empty text counts; the frame that opens a chat, a role with
empty content, does not. Reasoning counts as text.
"""

from __future__ import annotations

import asyncio
import json
import re
from array import array
from collections.abc import Sequence
from typing import Any

from serve_app.cli.http_client import error_words

_TEXT_KEYS = {"completions": (b'"text":',), "chat": (b'"content":', b'"reasoning_content":', b'"reasoning":')}
_PHASE = re.compile(rb"\bphase=(\S+)")
_WAITED = re.compile(rb"\bwaited_s=([0-9]{1,9}(?:\.[0-9]+)?)\b")
_MOST_TOKENS, _LONGEST_MS = 2**53, 1e12
"""No server counts or measures a larger number; some would not fit a record."""


class Scanner:
    """Follows one stream. `feed` takes bytes cut anywhere; times are seconds on the caller's clock."""

    __slots__ = (
        "_keys",
        "_last",
        "_rest",
        "_usage_frame",
        "done",
        "error",
        "kept",
        "over_s",
        "phases",
        "pieces",
        "waited_s",
    )

    def __init__(self, api: str, *, keep: bool = False) -> None:
        """With `keep`, the frames of pieces stay in `kept`, for the text of the answer."""
        self._keys = _TEXT_KEYS[api]
        self.kept: list[bytes] | None = [] if keep else None
        self._rest = b""
        self._last = b""
        self._usage_frame = b""
        # Not a list: the garbage collector would visit every number of every open stream.
        self.pieces = array("d")
        """When each piece arrived."""
        self.done = False
        """`[DONE]` has come, and no error before it."""
        self.error = ""
        """In words, if the stream had an error event."""
        self.over_s: float | None = None
        """When `[DONE]` or the error came."""
        self.phases: list[tuple[float, str]] = []
        """Each change of the phase in the comments: (time, phase)."""
        self.waited_s = 0.0
        """The seconds waited that the last comment gave."""

    def feed(self, data: bytes, now: float) -> None:
        """Take the next bytes of the body, which arrived at `now`."""
        if b"\r" in data:  # A legal line end of event streams; never a byte of JSON, which escapes it.
            data = data.replace(b"\r", b"")
        if self._rest:
            data = self._rest + data
        *frames, self._rest = data.split(b"\n\n")
        for frame in frames:
            if self.over_s is not None:
                return
            if frame.startswith(b"data:") and self._is_piece(frame):
                self.pieces.append(now)
                self._last = frame
                if self.kept is not None:
                    self.kept.append(frame)
            else:
                self._other(frame, now)

    def _is_piece(self, frame: bytes) -> bool:
        for key in self._keys:
            at = frame.find(key)
            if at < 0:
                continue
            at += len(key)
            if frame[at : at + 1] == b" ":
                at += 1
            if frame[at : at + 1] == b'"':  # A string, not null.
                return frame[at + 1 : at + 2] != b'"' or b'"role":' not in frame
        return False

    def _other(self, frame: bytes, now: float) -> None:
        """Anything but a piece alone: comments, an error, the usage, the end."""
        event, texts = b"", []
        for line in frame.split(b"\n"):
            if line.startswith(b":"):
                self._comment(line, now)
            elif line.startswith(b"event:"):
                event = line[6:].strip()
            elif line.startswith(b"data:"):
                texts.append(line[5:].strip())
        data = b"\n".join(texts)
        if data == b"[DONE]":
            self.done = True
            self.over_s = now
        elif event == b"error" or data.startswith((b'{"error":', b'{"error" :')):
            self.error = error_words(data)
            self.over_s = now
        elif self._is_piece(data):  # A piece after a comment.
            self.pieces.append(now)
            self._last = frame
            if self.kept is not None:
                self.kept.append(data)
        elif b'"usage"' in data:
            self._usage_frame = data

    def _comment(self, line: bytes, now: float) -> None:
        phase, waited = _PHASE.search(line), _WAITED.search(line)
        if waited:
            self.waited_s = float(waited[1])
        if phase:
            name = phase[1].decode(errors="replace")
            if not self.phases or self.phases[-1][1] != name:
                self.phases.append((now, name))

    def usage(self) -> Usage:
        """The server's counts. Fields are None where it sent none."""
        frame = self._usage_frame
        if not frame and b'"usage":' in self._last:  # Some servers send it with the last token.
            frame = self._last[self._last.find(b"{") :]
        return Usage(_parsed(frame))


class Usage:
    """The final usage of an answer."""

    __slots__ = ("cached_tokens", "cold_wait_s", "output_tokens", "prompt_tokens")

    def __init__(self, document: dict[str, Any]) -> None:
        usage = _part(document, "usage")
        self.prompt_tokens: int | None = _number(usage, "prompt_tokens")
        self.output_tokens: int | None = _number(usage, "completion_tokens")
        self.cached_tokens: int | None = _number(_part(usage, "prompt_tokens_details"), "cached_tokens")
        latency = _part(document, "latency")
        if self.cached_tokens is None:
            self.cached_tokens = _number(latency, "cached_tokens")
        self.cold_wait_s: float | None = None
        cold_ms = latency.get("cold_wait_ms")
        if isinstance(cold_ms, int | float) and 0 <= cold_ms <= _LONGEST_MS:
            self.cold_wait_s = cold_ms / 1e3


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):  # A stream is judged by its pieces and its end alone.
        return {}
    return document if isinstance(document, dict) else {}


def _part(document: dict[str, Any], key: str) -> dict[str, Any]:
    part = document.get(key)
    return part if isinstance(part, dict) else {}


def _number(document: dict[str, Any], key: str) -> int | None:
    number = document.get(key)
    return number if isinstance(number, int) and 0 <= number <= _MOST_TOKENS else None


_SLICE_FRAMES = 256
"""Frames parsed between two looks at the sockets, in about 1 ms."""


async def answer_text(frames: Sequence[bytes]) -> str:
    """The content of the first choice in `frames` that a `Scanner` kept; a frame that is no JSON has none."""
    parts = []
    for start in range(0, len(frames), _SLICE_FRAMES):
        parts += [_content(frame) for frame in frames[start : start + _SLICE_FRAMES]]
        await asyncio.sleep(0)
    return "".join(parts)


def _content(frame: bytes) -> str:
    try:
        choice = json.loads(frame[frame.find(b"{") :])["choices"][0]
        content = choice["delta"].get("content")
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return ""
    return content if isinstance(content, str) and choice.get("index", 0) == 0 else ""
