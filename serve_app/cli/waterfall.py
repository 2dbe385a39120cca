"""The trace of one request, as a small waterfall for a terminal."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from serve_app.cli.formats import seconds
from serve_app.wire import spans as names

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
