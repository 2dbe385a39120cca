"""What came of a run: every request, the fleet beside them, and how well the client kept time.

Times are seconds since the run's start on the client's monotonic clock, unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Outcome = Literal["answered", "left", "abandoned", "rejected", "failed", "broken"]
"""
answered   whole, to `[DONE]`
left       the scenario's client closed the connection, as it was to
abandoned  not whole after `timeout_s`, or the run was interrupted
rejected   429 or 503, after all retries
failed     any other status, no connection, or an error before the first token
broken     an error event or a cut after the first token
"""
OUTCOMES: tuple[Outcome, ...] = ("answered", "left", "abandoned", "rejected", "failed", "broken")
ERRORS: frozenset[Outcome] = frozenset(("abandoned", "rejected", "failed", "broken"))


@dataclass(frozen=True, slots=True)
class Record:
    """One request. Nothing is left out of a run, whatever became of it."""

    index: int
    kind: str
    model: str
    at_s: float
    """The intended time, from which every latency counts. In a closed loop, when it was sent."""
    sent_s: float
    """When the client turned to it first: its lag is `sent_s - at_s`."""
    ended_s: float
    outcome: Outcome
    status: int = 0
    """The last HTTP status; 0 without one."""
    attempts: int = 1
    error: str = ""
    """In words, with the API's error code; empty for `answered` and `left`."""
    pieces_s: tuple[float, ...] = ()
    """When each piece of the answer arrived: one token as a rule, several where they were sent together."""
    planned_prompt_tokens: int = 0
    planned_output_tokens: int = 0
    prompt_tokens: int | None = None
    """As the server counted; None where no usage came."""
    output_tokens: int | None = None
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache, where the server says."""
    cold_wait_s: float = 0.0
    """How long it was held until a replica could take it: the server's figure, or the last comment's."""
    phases: tuple[tuple[float, str], ...] = ()
    """Each change of what the comments of a held stream said: (time, phase)."""

    @property
    def first_s(self) -> float | None:
        """When the first piece arrived."""
        return self.pieces_s[0] if self.pieces_s else None

    @property
    def ttft_s(self) -> float | None:
        """From the intended time to the first piece; None if none came."""
        return self.pieces_s[0] - self.at_s if self.pieces_s else None

    @property
    def lag_s(self) -> float:
        """How late the client was."""
        return self.sent_s - self.at_s


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the replicas of a model. -1 where the server does not tell."""

    at_s: float
    model: str
    wanted: int = -1
    """What the policy wants, before delays and bounds of change."""
    target: int = -1
    ready: int = -1
    starting: int = -1
    """With their process, loading."""
    pending: int = -1
    """Asked for; no node has room yet."""
    draining: int = -1
    held: int = -1
    """Requests held until a replica can take them."""
    waiting: int = -1
    """Requests in the engines' queues."""
    running: int = -1
    """Requests in the engines' batches."""


@dataclass(frozen=True, slots=True)
class Timekeeping:
    """How well the client kept time, milliseconds."""

    sent_p99_ms: float
    """By the requests: how late they left."""
    sent_max_ms: float
    noticed_p99_ms: float
    """By a heartbeat: how late the client noticed that something was due."""
    noticed_max_ms: float
    cpu_share: float
    """CPU time of the busiest client process, as a share of one core."""


@dataclass(frozen=True, slots=True)
class Run:
    """A load test that has ended. What a report is made of."""

    scenario: Mapping[str, Any]
    """As plain data."""
    scenario_hash: str
    url: str
    began: float
    """Unix time of the run's start, by the client's clock."""
    duration_s: float
    records: tuple[Record, ...]
    samples: tuple[Sample, ...]
    decisions: tuple[Mapping[str, Any], ...]
    """The policy's records (docs/api.md), oldest first, those of the run's time alone."""
    timekeeping: Timekeeping
    interrupted: str = ""
    """Why the run ended early; empty if it did not."""
    unmet: str = ""
    """Why it could not begin as the scenario demands; empty if it did."""
    machine: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
