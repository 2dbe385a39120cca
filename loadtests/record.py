"""The results of a run: every request, the replicas, and how well the client kept time.

Times are seconds since the run's start on the client's monotonic clock, unless a name says otherwise.

The types of the fields also bound the values of a document: pydantic checks them only where a document is
read. A document's times are rounded to a tick, a tenth of a millisecond: a hundredth of the shortest latency
judged.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator, AllowInfNan, BeforeValidator, ConfigDict, Field, Strict, ValidationInfo

TICKS_PER_S = 10_000

Outcome = Literal["answered", "left", "abandoned", "rejected", "failed", "broken"]
"""
answered   whole, to `[DONE]`
left       the client closed the connection, as the scenario asked
abandoned  not whole after `timeout_s`, or the run was interrupted
rejected   429 or 503, after all retries
failed     any other status, no connection, or an error before the first token
broken     an error event or a cut after the first token
"""
OUTCOMES: tuple[Outcome, ...] = ("answered", "left", "abandoned", "rejected", "failed", "broken")
ERRORS: frozenset[Outcome] = frozenset(("abandoned", "rejected", "failed", "broken"))

ConversationEnd = Literal["", "whole", "context", "time", "unanswered"]
"""
whole       all its turns were answered
context     the next turn would not fit the model's context
time        the next turn would come after the scenario's time
unanswered  this turn did not come whole
"""


def ticks(seconds: float) -> int:
    """Return a time in whole ticks.

    Raises:
        ValueError: if it is not finite.
    """
    if not math.isfinite(seconds):
        raise ValueError(f"a time must be finite: {seconds}")
    return round(seconds * TICKS_PER_S)


def _times(gaps: tuple[float, ...], known: ValidationInfo) -> tuple[float, ...]:
    """Return when each piece arrived, from the gaps of a document."""
    if len(gaps) > 1 and min(gaps[1:]) < 0:
        raise ValueError(f"a piece cannot come before the one before it: {min(gaps[1:]):g} ticks")
    return tuple(((np.cumsum(gaps) + ticks(known.data.get("at_s", 0.0))) / TICKS_PER_S).tolist())


Count = Annotated[int, Strict(), Field(ge=0)]
Level = Annotated[int, Strict(), Field(ge=-1)]
Seconds = Annotated[float, Strict(), AllowInfNan(False)]
Figure = Annotated[float, Strict(), BeforeValidator(lambda given: math.nan if given is None else given)]
"""NaN, which is null in a document, where it is not known."""
Pieces = Annotated[
    tuple[Annotated[float, Strict(), Field(multiple_of=1)], ...],
    Field(alias="pieces"),
    AfterValidator(_times),
]
"""In a document, gaps in whole ticks: the first from the intended time, each other from the piece before. The
times are rounded, not the gaps, so that errors never add up."""


@dataclass(frozen=True, slots=True)
class Record:
    """One request. A run has the records of all of them."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    index: Count
    kind: str
    model: str
    at_s: Seconds
    """The intended time, from which every latency counts. In a closed loop it is when the request was sent;
    for a later turn of a conversation, the end of the answer before it plus the time to think."""
    sent_s: Seconds
    """When the client began it; its lag is `sent_s - at_s`."""
    ended_s: Seconds
    outcome: Outcome
    status: Count = 0
    """The last HTTP status; 0 without one."""
    attempts: Count = 1
    error: str = ""
    """In words, with the API's error code; empty for `answered` and `left`."""
    pieces_s: Pieces = ()
    """When each piece of the answer arrived: one token as a rule, several where they were sent together."""
    planned_prompt_tokens: Count = 0
    planned_output_tokens: Count = 0
    prompt_tokens: Count | None = None
    """As the server counted; None where no usage came."""
    output_tokens: Count | None = None
    cached_tokens: Count | None = None
    """Prompt tokens found in the prefix cache, where the server reports them."""
    cold_wait_s: Seconds = 0.0
    """How long it was queued for a cold start: the server's figure, or the last comment's."""
    phases: tuple[tuple[Seconds, str], ...] = ()
    """Each change of the phase in the comments of a queued stream: (time, phase)."""
    planned_prefix_tokens: Count = 0
    """The first tokens of the prompt, which other requests of the kind with the same `prefix` share."""
    prefix: Count = 0
    session: Count | None = None
    """The conversation, by the `index` of its first turn; None for a request without one."""
    turn: Count = 0
    """The turn, from 1; 0 without a conversation."""
    next_at_s: Seconds | None = None
    """The intended time of the next turn, if there is one."""
    conversation_end: ConversationEnd = ""
    """Why there is no next turn; empty if there is, or without a conversation."""

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
    """One look at the replicas of a model. -1 where the server reports nothing."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    at_s: Seconds
    model: str
    wanted: Level = -1
    """The policy's number of replicas, before delays and bounds of change."""
    target: Level = -1
    ready: Level = -1
    starting: Level = -1
    """With their process, loading."""
    pending: Level = -1
    """Asked for; no node has room yet."""
    draining: Level = -1
    held: Level = -1
    """Requests queued for a cold start."""
    waiting: Level = -1
    """Requests in the engines' queues."""
    running: Level = -1
    """Requests in the engines' batches."""


@dataclass(frozen=True, slots=True)
class Timekeeping:
    """How well the client kept time, milliseconds."""

    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    sent_p99_ms: Figure
    """By the requests: how late they left."""
    sent_max_ms: Figure
    noticed_p99_ms: Figure
    """By a heartbeat: how late the client noticed that something was due."""
    noticed_max_ms: Figure
    cpu_share: Figure
    """CPU time of the busiest client process, as a share of one core."""


@dataclass(frozen=True, slots=True)
class Run:
    """A load test that has ended."""

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
