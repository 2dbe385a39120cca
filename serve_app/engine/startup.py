"""The start of one engine replica: its phases, the start of its process, and its priority."""

import json
import logging
import math
import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from serve_app import env

logger = logging.getLogger("ray.serve")

Publish = Callable[[str], None]

_AT_HAND_S = 1.0
"""A fork with a longer idle time had been started in advance."""
_LONGEST_IDLE_S = 30.0
"""The bound for a process that imports for itself, and waits for its disk meanwhile. It also bounds the
age of a process whose idle time is unknown."""
STARTING = 5
"""The niceness of a starting replica: a third of a serving process's weight. On two cores, two starting
replicas take one core and leave the other core to a running engine."""
CPU_CORE = 5
"""The niceness of an engine core that computes on the CPU. Otherwise each of the five processes on an event's
way would wait for the end of a core's time slice."""
_CAP_SYS_NICE = 23
_NICENESS_0 = 20
"""The value of RLIMIT_NICE with which a process may go back to niceness 0 (getrlimit(2))."""


def created(process: int) -> float:
    """Return when a process was created, in Unix time, exact to 10 ms. Raises ProcessLookupError.

    psutil counts from the kernel's `btime`, which is in whole seconds and may be off by one.
    """
    try:
        ticks = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
    except FileNotFoundError:
        raise ProcessLookupError(process) from None
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age_s


def process_start() -> tuple[float, bool]:
    """Return the seconds of the phase `process`, and whether this replica's start found its node warm."""
    return process_phase(os.environ, created(os.getpid()), time.time(), busy_seconds())


def process_phase(
    environment: Mapping[str, str], created: float, now: float, busy_s: float
) -> tuple[float, bool]:
    """Return the seconds that a process took to reach its own code, and whether its node was warm.

    Ray may use a worker process that it started in advance, whose age says nothing about the start. Such a
    process was idle, and counts as 0 s. A process that was at work counts in full: its replica has had its
    GPUs for so long. A negative age, after the clock was set back, counts as 0 s.

    A node is warm if its zygote had imported vLLM before the process was requested, so that the start
    includes no import. The node is cold for a process that was not forked, or that waited for the zygote's
    imports. This wait is part of the phase.

    Args:
        created: When the process was created, in Unix time; for a fork, when it was forked.
        now: Unix time.
        busy_s: The seconds that the process has run or waited for a core; see `busy_seconds`.
    """
    process_s, ready_at = max(0.0, now - created), environment.get(env.ZYGOTE_READY_AT)
    known = math.isfinite(busy_s)
    idle_s = process_s - busy_s if known else process_s
    if idle_s > (_LONGEST_IDLE_S if ready_at is None or not known else _AT_HAND_S):
        process_s = 0.0  # a spare process
    if ready_at is None or not process_s:
        return process_s, ready_at is not None
    asked_at = float(environment[env.PROCESS_ASKED_AT])
    return process_s + max(0.0, created - asked_at), float(ready_at) <= asked_at


def busy_seconds(statistics: Path = Path("/proc/self/schedstat")) -> float:
    """Return the seconds that this process's main thread has run or waited for a core.

    Infinite if the kernel has no scheduler statistics.
    """
    try:
        ran, waited, _ = statistics.read_text(encoding="ascii").split()
    except OSError:
        return math.inf
    return (int(ran) + int(waited)) / 1e9 or math.inf  # zeros if the statistics are off


def error_log() -> str:
    """Return the file of this process's standard error. The engine core writes its errors there too."""
    return os.path.realpath("/proc/self/fd/2")


@dataclass(slots=True)
class Startup:
    """The phases of a replica's start in order, with their seconds.

    `publish` is called with a JSON document at every change: the current phase, its begin (Unix time), the
    durations so far, whether the node was warm, and the replica's identity. `durations` may contain phases
    that have already ended.
    """

    model: str
    publish: Publish
    wall: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic
    durations: dict[str, float] = field(default_factory=dict)
    hint: str = ""
    """A possible explanation of a failure, published with the failure's reason."""
    log: str = ""
    """The path of the log with the causes of a failure, published with its reason."""
    warm_node: bool = False
    """Whether vLLM was imported on the node before the start; see `process_phase`."""
    engine_identity: str = ""
    """Changes with weights, hardware and arguments; see `serve_app.settings.identity`."""
    about: dict[str, str] = field(default_factory=dict)
    """More for the documents: the node, and why the health check fails (`wire.phases.Loss`)."""
    failed: bool = False
    """Whether a phase failed: `/ready` then shows its document, which outlives the replica."""
    current: str = ""
    """The last phase that began."""
    stalled: str = ""
    """Why the start was ended, if it showed no progress (see `start_watch`)."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block as phase `name`. A failure is published with its reason and raised again."""
        self.current = name
        self._publish(name)
        started = self.clock()
        try:
            yield
        except BaseException as error:
            self.fail(f"{type(error).__name__}: {error}")
            raise
        self.durations[name] = self.durations.get(name, 0.0) + self.clock() - started
        logger.info("model %s: phase %s took %.2f s", self.model, name, self.durations[name])

    def fail(self, reason: str) -> None:
        self.failed = True
        self._publish("failed", during=self.current, reason=self._reason(reason))

    def publish_readiness(self) -> None:
        self._publish("ready")

    def finish(self) -> None:
        """Publish readiness and log all phases in one line."""
        self.publish_readiness()
        spent = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self.durations.items())
        node = "warm" if self.warm_node else "cold"
        total = sum(self.durations.values())
        logger.info("model %s: ready after %.2f s on a %s node (%s)", self.model, total, node, spent)

    @property
    def kind(self) -> dict[str, bool | str]:
        """The parts of each document that never change."""
        return {"warm_node": self.warm_node, "identity": self.engine_identity}

    def _reason(self, error: str) -> str:
        reason = "; ".join(filter(None, (self.stalled, error)))[:2000]
        more = "; ".join(filter(None, (self.hint, self.log and f"log: {self.log}")))
        return f"{reason} ({more})" if more else reason

    def _publish(self, phase: str, **more: str) -> None:
        document = {"phase": phase, "since": self.wall(), "durations_s": self.durations}
        self.publish(json.dumps({**document, **self.kind, **self.about, **more}))


@contextmanager
def lower_priority(core: int = 0) -> Iterator[None]:
    """Run the block and the processes that it starts with a lower priority, then restore the priority.

    A process that cannot restore its priority does not lower it. On Linux that takes CAP_SYS_NICE, or an
    RLIMIT_NICE of 20 or more.

    Args:
        core: The niceness that the started processes keep, above that of this process.
    """
    before, restores = os.getpriority(os.PRIO_PROCESS, 0), may_undo()
    if restores:
        _set(os.getpid(), before + STARTING + core)
    try:
        yield
    finally:
        own = os.getpid()
        for process in group_processes():
            with suppress(OSError):  # the process has ended
                if restores or (core and process != own):
                    _set(process, before + (0 if process == own else core))


def group_processes() -> Iterator[int]:
    """Yield the processes of this process's group: a replica with its engine core."""
    for process in (int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal()):
        with suppress(OSError):  # the process has ended
            if os.getpgid(process) == os.getpgrp():
                yield process


def may_undo() -> bool:
    """Return whether this process may lower its niceness again."""
    if resource.getrlimit(resource.RLIMIT_NICE)[0] >= _NICENESS_0:
        return True
    status = Path("/proc/self/status").read_text(encoding="ascii")
    effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> _CAP_SYS_NICE & 1)


def _set(process: int, niceness: int) -> None:
    """Set the niceness of every thread of `process`: on Linux each thread has its own."""
    for thread in Path(f"/proc/{process}/task").iterdir():
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, int(thread.name), niceness)
