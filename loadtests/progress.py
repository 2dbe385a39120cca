"""How far a run is: what a view shows while it goes on."""

from bisect import bisect_right, insort
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from loadtests.record import ERRORS, Record, Sample

Stage = Literal["waiting", "running", "scaling down", "done"]
"""Waiting for the first replicas; sending requests; waiting for replicas to go; done."""
RECENT_S = 10.0


@dataclass(slots=True)
class Progress:
    """The state of a run, which the runner keeps and views read. Times are seconds of the run."""

    planned_at: list[float] = field(default_factory=list)
    """Intended times, rising; empty in a closed loop. Those of later turns join as soon as they are known."""
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
    """What the observer could not read, at its last look."""
    outcomes: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    worst_lag_s: float = 0.0
    _recent: deque[Record] = field(default_factory=deque)

    def add(self, records: Iterable[Record]) -> None:
        """Requests that have ended."""
        for record in records:
            self.records.append(record)
            self.outcomes[record.outcome] += 1
            self.tokens += record.output_tokens or len(record.pieces_s)
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
        """Those that ended within the last `RECENT_S`."""
        while self._recent and self._recent[0].ended_s < self.at_s - RECENT_S:
            self._recent.popleft()
        return list(self._recent)
