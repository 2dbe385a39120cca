"""What was done and what was seen. Times are seconds of `time.monotonic`, which all processes here share."""

from dataclasses import dataclass, field
from typing import Literal

from benchmarks.chaos.roles import Signal

INTERVAL_S = 0.2
"""Between two probes of a kind."""

Outcome = Literal["whole", "continued", "told", "cut", "hung", "refused", "open"]
"""
whole      every token asked for and `[DONE]`, without a pause
continued  the same, after a pause
told       ended by an error event and `[DONE]`
cut        the connection ended, or the stream did, without either
hung       neither ended nor went on, until it was given up
refused    no answer had begun: no connection, or another status than 200
open       went on still when it was given up: on a busy machine an answer takes long
"""


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream of the load."""

    opened_s: float
    ended_s: float
    outcome: Outcome
    tokens: int = 0
    longest_pause_s: float = 0.0
    """Between two pieces, and from the last one to the end."""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Probe:
    """One request on a connection of its own."""

    sent_s: float
    ended_s: float
    ok: bool
    error: str = ""

    @property
    def took_s(self) -> float:
        """Until it was answered, or failed."""
        return self.ended_s - self.sent_s


@dataclass(frozen=True, slots=True)
class Ready:
    """One answer of `/ready`, or none."""

    sent_s: float
    ended_s: float
    said: Literal["up", "down", "nothing"]
    replicas: int = 0
    """Engine replicas it says are up."""
    error: str = ""

    @property
    def took_s(self) -> float:
        """Until it was answered, or failed."""
        return self.ended_s - self.sent_s


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the application."""

    pid: int
    group: int
    """Its process group: Ray gives each worker one, which its engine core shares."""
    role: str
    node: str
    began: float
    """Unix time: with the pid, this process and no later one with its number."""
    runs: bool
    """False while it is stopped."""


@dataclass(frozen=True, slots=True)
class Look:
    """The processes that lived at a time."""

    at_s: float
    processes: tuple[Process, ...]


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory by role, in bytes, summed over its processes, and how many they were."""

    at_s: float
    bytes_by_role: dict[str, int]
    count_by_role: dict[str, int]


@dataclass(frozen=True, slots=True)
class Event:
    """One process, or one node, killed or stopped."""

    at_s: float
    role: str
    signal: Signal
    pids: tuple[int, ...]
    node: str = ""
    continued_s: float | None = None
    """When a stopped process got SIGCONT."""


@dataclass(slots=True)
class Trace:
    """Everything seen in a run, oldest first in each list."""

    events: list[Event] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)
    """When the watch over each event ended, and the next could begin."""
    notes: list[str] = field(default_factory=list)
    """What became of the server after each event, in words."""
    back_s: list[float | None] = field(default_factory=list)
    """After how long it was at full strength again; None: it was not."""
    streams: list[Stream] = field(default_factory=list)
    answers: list[Probe] = field(default_factory=list)
    healths: list[Probe] = field(default_factory=list)
    readies: list[Ready] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)

    def interrupt(self) -> None:
        """End what was watched last where it was left."""
        if len(self.ends_s) < len(self.events):
            self.ends_s.append(self.looks[-1].at_s)
            self.notes.append(f"interrupted after {self.looks[-1].at_s - self.events[-1].at_s:.1f} s")
            self.back_s.append(None)
