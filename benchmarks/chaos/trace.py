"""The events of a run, and everything seen around them.

Times are seconds of `time.monotonic`, which all processes here share.
"""

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from benchmarks.chaos.roles import ENGINE_CORE, ENGINE_REPLICA, Signal

INTERVAL_S = 0.2
"""Between two probes of a kind, and between two snapshots of the processes."""

Outcome = Literal["whole", "paused", "error", "cut", "hung", "open", "refused"]
"""
whole    every token asked for and the last event, which is `[DONE]` in chat completions
paused   the same, after a pause
error    ended by the error event of the API, in chat completions with `[DONE]`
cut      the connection or the stream ended without either, or with tokens lost or repeated
hung     nothing had come for a while when the client gave up
open     still going on when the client gave up: an answer takes long on a busy machine
refused  no answer had begun: no connection, or a status that is not 200
"""


@dataclass(frozen=True, slots=True)
class Stream:
    """One greedy chat of the load."""

    subject: str
    opened_s: float
    ended_s: float
    outcome: Outcome
    error: str = ""
    longest_pause_s: float = 0.0
    """Between two pieces, and from the last piece to the end."""
    text: str = ""
    finish_reasons: list[str] = field(default_factory=list)
    usage: dict[str, int] = field(default_factory=dict)
    """Prompt, completion and total tokens; the rest depends on a replica's cache."""
    logprobs: list[tuple[str, float]] = field(default_factory=list)
    answers: int = 0
    """Different pairs of `id` and `created` among the events: one, if nothing was mixed up."""
    roles: int = 0
    """Events that open an answer."""
    moves: list[tuple[float, float]] = field(default_factory=list)
    """For each move to another replica, the times of the last piece before and the first piece after."""
    api: str = "chat"
    """One of `greedy_chat.PATHS`."""

    @property
    def whole(self) -> bool:
        """Whether the client got all of an answer."""
        return self.outcome in ("whole", "paused")


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
class Ready(Probe):
    """One request for `/ready`. `ok` is false if it had no answer of the right shape."""

    up: bool = False
    replicas: int = 0
    """Engine replicas that `/ready` says are up."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the application."""

    pid: int
    group: int
    """Its process group. Ray gives each worker one, which the worker's engine core shares."""
    role: str
    began: float
    """Unix time: tells this process from a later one with the same pid."""
    runs: bool = True
    """False while it is stopped."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The processes that lived at one time."""

    at_s: float
    processes: tuple[Process, ...]

    def engines(self) -> list[tuple[int, int]]:
        """The pids of each engine's replica and core, oldest core first. Neither of the two is stopped."""
        replicas = {one.group: one.pid for one in self.processes if one.role == ENGINE_REPLICA and one.runs}
        cores = [one for one in self.processes if one.role == ENGINE_CORE and one.runs]
        cores = [one for one in cores if one.group in replicas]
        return [(replicas[one.group], one.pid) for one in sorted(cores, key=lambda one: one.began)]

    def running(self) -> set[str]:
        """The roles that have a process that runs."""
        return {one.role for one in self.processes if one.runs}


@dataclass(slots=True)
class Event:
    """One process killed or stopped."""

    at_s: float
    role: str
    signal: Signal
    pid: int
    end_s: float | None = None
    """When the watch over this event ended."""
    back_s: float | None = None
    """How long the application took to return to full strength; None: it did not, or nobody waited."""
    note: str = ""
    """The fate of the server, in words."""

    @property
    def name(self) -> str:
        """For example `engine-core killed`."""
        return f"{self.role} {'killed' if self.signal == 'kill' else 'stopped'}"


@dataclass(slots=True)
class Trace:
    """Everything seen in a run, oldest first in each list."""

    events: list[Event] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    answers: list[Probe] = field(default_factory=list)
    healths: list[Probe] = field(default_factory=list)
    readies: list[Ready] = field(default_factory=list)
    snapshots: list[Snapshot] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """Machine, versions and command line."""

    def interrupt(self) -> None:
        """End the watch over the last event now, if it goes on."""
        if self.events and self.events[-1].end_s is None:
            event, end_s = self.events[-1], self.snapshots[-1].at_s
            event.end_s, event.note = end_s, f"interrupted after {end_s - event.at_s:.1f} s"

    def document(self) -> dict[str, Any]:
        """Everything as plain data, with without snapshots equal to the one before."""
        changed: list[Snapshot] = []
        for snapshot in self.snapshots:
            if not changed or snapshot.processes != changed[-1].processes:
                changed.append(snapshot)
        return asdict(replace(self, snapshots=changed))
