"""The answer to a streamed chat: its text, its figures and its trace, from the server's events."""

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from serve_app.api.request_trace import SHOWN
from serve_app.cli.ask_display import Piece, Wait
from serve_app.cli.formats import count, seconds
from serve_app.wire import spans as names

_TRACE = SHOWN.decode()
_WAIT = re.compile(r"\bphase=(?P<phase>\S+) eta_s=(?P<eta>\S+) waited_s=(?P<waited>[0-9]{1,9})")


@dataclass(slots=True)
class Answer:
    """One answer, during and after its stream. Times are in seconds since the request was sent."""

    model: str
    text: str = ""
    reasoning: str = ""
    pieces: int = 0
    """The events with a token. The event of a token that is half a character has no text."""
    first_s: float = 0.0
    last_s: float = 0.0
    finish_reason: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    latency: Mapping[str, Any] = field(default_factory=dict)
    """Tideserve's own figures (docs/api.md). Other servers send none."""
    trace: Mapping[str, Any] = field(default_factory=dict)
    """The trace, if it was asked for. Other servers send none."""

    @property
    def tokens(self) -> int:
        """The server's count of tokens. If the server sends none, the number of events with a token."""
        return int(_number(self.usage, "completion_tokens") or self.pieces)

    def take(self, data: str, now_s: float) -> Piece | None:
        """Add one event's document and return the text in it.

        Raises:
            ValueError: if it is not the document of a streamed completion.
        """
        document = json.loads(data)
        if not isinstance(document, dict) or not isinstance(document.get("choices"), list):
            raise ValueError("an event without choices")
        self.usage = _mapping(document, "usage") or self.usage
        self.latency = _mapping(document, "latency") or self.latency
        choice = next((choice for choice in document["choices"] if isinstance(choice, dict)), None)
        if choice is None:
            return None
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        piece = _piece(choice)
        if piece is None:
            return None
        self.pieces += 1
        self.last_s = now_s
        if self.pieces == 1:
            self.first_s = now_s
        if piece.reasoning:
            self.reasoning += piece.text
        else:
            self.text += piece.text
        return piece

    def take_trace(self, data: str) -> None:
        """Replace the trace, or leave it out if it is no JSON object."""
        with suppress(ValueError, RecursionError):
            document = json.loads(data)
            self.trace = document if isinstance(document, dict) else {}

    def figures(self) -> str:
        """Return one line with the tokens and latencies: the server's figures, or those measured here."""
        ttft_ms, itl_ms = _number(self.latency, "ttft_ms"), _number(self.latency, "inter_token_ms")
        cold_ms, rate = _number(self.latency, "cold_wait_ms"), _number(self.latency, "tokens_per_second")
        seen = ""
        if ttft_ms is None:
            seen = " (measured here)"
            ttft_ms = 1000 * self.first_s
            itl_ms = 1000 * (self.last_s - self.first_s) / (self.tokens - 1) if self.tokens > 1 else None
            rate = self.tokens / self.last_s if self.last_s > 0 else None
        parts = [count(self.tokens, "token"), f"TTFT {seconds(ttft_ms / 1000)}"]
        if cold_ms is not None:
            parts.append(f"cold wait {seconds(cold_ms / 1000)}" if cold_ms else "no cold wait")
        if itl_ms is not None and self.tokens > 1:
            parts.append(f"ITL {seconds(itl_ms / 1000)}")
        if rate is not None:
            parts.append(f"{rate:.3g} tokens/s")
        return f"{self.model}: {', '.join(parts)}{seen}"

    def trace_lines(self) -> list[str]:
        """Return the lines of the trace, or one that says why there are none."""
        try:
            return waterfall(self.trace, self.latency)
        except (LookupError, TypeError, ValueError, AttributeError):
            return ["the server has sent no trace"]


def _piece(choice: Mapping[str, Any]) -> Piece | None:
    delta = _mapping(choice, "delta")
    if not delta:
        text = choice.get("text")
        return Piece(text) if isinstance(text, str) else None
    text = delta.get("content")
    thought = delta.get("reasoning_content") or delta.get("reasoning")
    if isinstance(thought, str) and thought and not text:
        return Piece(thought, reasoning=True)
    # A chat begins with an event that has a role and no text, which is not a token.
    return Piece(text) if isinstance(text, str) and (text or "role" not in delta) else None


def _mapping(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    part = document.get(key)
    return part if isinstance(part, dict) else {}


def _number(document: Mapping[str, Any], key: str) -> float | None:
    number = document.get(key)
    return number if isinstance(number, int | float) and 0 <= number < 1e15 else None


class Event(NamedTuple):
    """One event; `name` is empty if the stream gives none."""

    name: str
    data: str


@dataclass(frozen=True, slots=True)
class ShownTrace:
    """A comment with the trace so far. The last one has the whole trace."""

    document: str


async def read_events(blocks: AsyncIterator[bytes]) -> AsyncIterator[Event | Wait | ShownTrace]:
    """Yield events, and comments about a wait or with a trace, which libraries drop."""
    rest, name, lines = b"", "", list[str]()
    async for block in blocks:
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            text = line.removesuffix(b"\r").decode("utf-8", "replace")
            key, _, value = text.partition(":")
            if not text:
                if lines:
                    yield Event(name, "\n".join(lines))
                name, lines = "", []
            elif not key and (wait := _WAIT.search(text)):
                eta = wait["eta"]
                eta_s = int(eta) if eta.isascii() and eta.isdigit() and len(eta) < 10 else None
                yield Wait(wait["phase"], eta_s, int(wait["waited"]))
            elif text.startswith(_TRACE):
                yield ShownTrace(text.removeprefix(_TRACE))
            elif key == "data":
                lines.append(value.removeprefix(" "))
            elif key == "event":
                name = value.removeprefix(" ")


_WIDTH = 40
_SHOWN = (names.REPLICA, names.REASON, names.OUTCOME, names.EXPECTED_CACHED, names.MOVES)


@dataclass(frozen=True, slots=True)
class _Bar:
    """One line. Times in seconds since the request's arrival."""

    name: str
    start: float
    end: float
    words: str = ""


def waterfall(trace: Mapping[str, Any], latency: Mapping[str, Any]) -> list[str]:
    """Return the lines of a trace that the ingress has sent, with the engine's times of `latency`.

    Raises:
        LookupError, TypeError, ValueError: it is not such a trace.
    """
    total = max(float(trace["seconds"]), 1e-6)
    bars = [bar for span in trace["spans"] for bar in _bars(span)]
    bars += _engine(trace["spans"], latency)
    width = max((len(bar.name) for bar in bars), default=0)
    lines = [f"trace {trace['trace_id']}, {seconds(total)}"]
    for bar in sorted(bars, key=lambda bar: bar.start):
        begin = min(int(_WIDTH * max(0.0, bar.start) / total), _WIDTH - 1)
        length = max(1, round(_WIDTH * (min(bar.end, total) - bar.start) / total))
        drawn = (" " * begin + "=" * length)[:_WIDTH]
        lines.append(
            f"{bar.name:{width}} {seconds(bar.end - bar.start):>8} |{drawn:{_WIDTH}}| {bar.words}".rstrip()
        )
    return lines


def _bars(span: Mapping[str, Any]) -> Iterator[_Bar]:
    """Yield the bar of a span, and one for each phase of a cold start."""
    attributes = span["attributes"]
    words = ", ".join(str(attributes[name]) for name in _SHOWN if name in attributes)
    end = float(span["end"])
    yield _Bar(str(span["name"]), float(span["start"]), end, words)
    phases = [
        (float(at), said[names.PHASE_NAME]) for _, at, said in span["events"] if names.PHASE_NAME in said
    ]
    ends = [*(at for at, _ in phases[1:]), end]
    for (at, phase), until in zip(phases, ends, strict=False):
        yield _Bar(f"  {phase}", at, until)


def _engine(spans: list[Mapping[str, Any]], latency: Mapping[str, Any]) -> Iterator[_Bar]:
    """Yield the engine's times around the last first token, whose time the ingress knows."""
    first = [at for span in spans for name, at, _ in span["events"] if name == names.FIRST_TOKEN]
    times = [latency.get(f"{name}_ms") for name in ("queue", "prefill", "decode")]
    if not first or not all(isinstance(each, int | float) for each in times):
        return
    queue, prefill, decode = (float(each or 0.0) / 1e3 for each in times)
    at = float(first[-1])
    yield _Bar("  engine queue", at - prefill - queue, at - prefill)
    yield _Bar("  prefill", at - prefill, at)
    yield _Bar("  decode", at, at + decode)
