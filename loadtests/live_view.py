"""Progress of a run: a live panel on a terminal, and lines elsewhere."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from loadtests.record import ERRORS, Record, Sample
from serve_app.cli import formats

Stage = Literal["waiting", "running", "scaling down", "done"]
"""Waiting for the first replicas; sending requests; waiting for replicas to go; done."""
RECENT_S = 10.0
_LINE_EVERY_S = 10.0
_MOST_REASON = 160


@dataclass(slots=True)
class Progress:
    """The state of a run, which the runner keeps and views read. Times are seconds of the run."""

    planned_at: list[float] = field(default_factory=list)
    """Intended times, rising; empty in a closed loop. Later turns join as soon as their times are known."""
    planned_s: float = 0.0
    """How long requests come for."""
    stage: Stage = "waiting"
    waiting_for: str = ""
    """In words, where the stage is `waiting` or `scaling down`."""
    at_s: float = 0.0
    records: list[Record] = field(default_factory=list)
    """The requests that have ended, in the order in which they ended."""
    samples: dict[str, Sample] = field(default_factory=dict)
    """The newest by model."""
    decision: Mapping[str, Any] | None = None
    """The newest change of a target."""
    problem: str = ""
    """The problem of the observer at its last look; empty if there was none."""
    outcomes: Counter[str] = field(default_factory=Counter)
    worst_lag_s: float = 0.0
    _recent: deque[Record] = field(default_factory=deque)

    def add(self, records: Iterable[Record]) -> None:
        """Add requests that have ended."""
        for record in records:
            self.records.append(record)
            self.outcomes[record.outcome] += 1
            self.worst_lag_s = max(self.worst_lag_s, record.lag_s)
            self._recent.append(record)
            if self.planned_at and record.next_at_s is not None:
                insort(self.planned_at, record.next_at_s)

    @property
    def due(self) -> int:
        """Requests whose intended time has come; in a closed loop, those that have ended."""
        return bisect_right(self.planned_at, self.at_s) if self.planned_at else len(self.records)

    @property
    def open(self) -> int:
        """Requests under way."""
        return max(0, self.due - len(self.records))

    @property
    def errors(self) -> int:
        """Requests that failed, however."""
        return sum(self.outcomes[outcome] for outcome in ERRORS)

    def recent(self) -> list[Record]:
        """The requests that ended within the last `RECENT_S`."""
        while self._recent and self._recent[0].ended_s < self.at_s - RECENT_S:
            self._recent.popleft()
        return list(self._recent)


def view_for(console: Console, name: str) -> LiveView | LineView:
    """The view that suits where `console` writes."""
    return LiveView(console, name) if console.is_terminal else LineView(console)


class LiveView:
    """A panel that is drawn over, four times a second."""

    def __init__(self, console: Console, name: str) -> None:
        self._name = name
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, progress: Progress) -> None:
        """Draw it."""
        self._live.update(panel(self._name, progress), refresh=True)


class LineView:
    """A line every ten seconds, at each new stage, and at each decision."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stage = ""
        self._decided_at: object = None
        self._next_s = float("-inf")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def show(self, progress: Progress) -> None:
        """Print the news."""
        decided_at = progress.decision["at"] if progress.decision else None
        if decided_at != self._decided_at:
            self._decided_at = decided_at
            self._print(decision_line(progress))
        if progress.stage == self._stage and progress.at_s < self._next_s:
            return
        self._stage = progress.stage
        self._next_s = progress.at_s + _LINE_EVERY_S
        if progress.stage == "waiting":
            self._print(f"waiting for {progress.waiting_for}")
        elif progress.stage != "done":
            fleet = "; ".join(f"{_replicas(one)}, {_queues(one)}" for one in progress.samples.values())
            seen = fleet or "no replicas seen yet"
            self._print(f"{max(0.0, progress.at_s):6.1f} s  {requests_line(progress)}; {seen}")

    def _print(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


def panel(name: str, progress: Progress) -> Group:
    """The lines of the live view."""
    lines: list[Text | Table] = [Text.assemble((name, "bold"), f"  {_stage(progress)}")]
    if progress.stage != "waiting":
        lines.append(_figures(progress))
    if progress.decision:
        lines.append(Text(decision_line(progress), style="dim"))
    if progress.problem:
        problem = formats.plain(progress.problem, _MOST_REASON)
        lines.append(Text(f"cannot read the server's state: {problem}", style="yellow"))
    return Group(*lines)


def _stage(progress: Progress) -> str:
    if progress.stage == "waiting":
        return f"waiting for {progress.waiting_for or 'the server'}"
    if progress.stage == "scaling down":
        return f"every request has ended; waiting for {progress.waiting_for or 'the last figures'}"
    return f"{max(0.0, progress.at_s):.0f} of {progress.planned_s:.0f} s"


def _figures(progress: Progress) -> Table:
    table = Table.grid(padding=(0, 2))
    recent = progress.recent()
    share = min(1.0, progress.at_s / progress.planned_s) if progress.planned_s else 1.0
    tokens = sum(record.output_tokens or len(record.pieces_s) for record in recent)
    rate = f"{tokens / min(RECENT_S, max(1.0, progress.at_s)):.0f} tokens/s"
    table.add_row("time", ProgressBar(total=1.0, completed=max(0.0, share), width=60))
    table.add_row("requests", requests_line(progress))
    table.add_row("last 10 s", f"{_latencies(recent)}, {rate}")
    for model, sample in progress.samples.items():
        table.add_row("replicas", f"{_replicas(sample)}  {formats.plain(model)}")
        table.add_row("queues", _queues(sample))
    table.add_row("client", f"at most {1000 * progress.worst_lag_s:.1f} ms late")
    return table


def requests_line(progress: Progress) -> str:
    """`120 sent, 96 answered, 20 open, 1 left, 3 errors`."""
    parts = [f"{progress.outcomes['answered']} answered"]
    if progress.planned_at:  # a closed loop has sent what it has answered
        parts = [f"{progress.due} sent", *parts, f"{progress.open} open"]
    if progress.outcomes["left"]:
        parts.append(f"{progress.outcomes['left']} left")
    parts.append(f"{progress.errors} errors")
    return ", ".join(parts)


def decision_line(progress: Progress) -> str:
    """The newest decision: `2 -> 3 replicas: queue: …`."""
    record = progress.decision
    if record is None:
        return ""
    reason = formats.plain(str(record.get("reason", "")), _MOST_REASON)
    return f"{record.get('old_target')} -> {record.get('new_target')} replicas: {reason}"


def _replicas(sample: Sample) -> str:
    ready = f"{sample.ready} ready" if sample.ready >= 0 else "ready unknown"
    others = [(name, getattr(sample, name)) for name in ("starting", "pending", "draining")]
    shown = ", ".join([ready, *(f"{count} {name}" for name, count in others if count > 0)])
    return f"{shown} (target {sample.target})" if sample.target >= 0 else shown


def _queues(sample: Sample) -> str:
    parts = (
        ("queued for a cold start", sample.held),
        ("waiting", sample.waiting),
        ("running", sample.running),
    )
    return ", ".join(f"{max(0, count)} {name}" for name, count in parts)


def _latencies(records: Sequence[Record]) -> str:
    times = sorted(record.ttft_s for record in records if record.ttft_s is not None)
    if not times:
        return "no first token"
    at95 = times[min(len(times) - 1, int(0.95 * len(times)))]
    return f"TTFT {formats.seconds(times[len(times) // 2])} median, {formats.seconds(at95)} at P95"
