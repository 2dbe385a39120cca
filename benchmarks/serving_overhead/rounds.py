"""Alternating rounds: every server gets the same load again and again, in a rotating order."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from benchmarks.common.server_process import ServerProcess
from benchmarks.serving_overhead.load import Load, Measured, measure, wait_answer
from benchmarks.serving_overhead.servers import Kind, Setup, start


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run, and how long to wait for it."""

    kinds: tuple[Kind, ...]
    load: Load
    rounds: int
    exclusive: bool
    """One server up at a time, each round on a fresh one; otherwise all stay up throughout."""
    settle_s: float
    """Between a server's first reply and its load; the second half of it measures idle CPU."""
    start_timeout_s: float


@dataclass(frozen=True, slots=True)
class Started:
    """One start of one server."""

    server: str
    start_s: float
    """From starting the process to the first complete reply, seconds."""
    idle_cores: float
    """CPU it takes while nothing is asked of it, in cores."""
    memory_bytes: int
    """Proportional set size, so that shared memory is counted once."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that was measured."""

    starts: tuple[Started, ...]
    measurements: tuple[Measured, ...]


class Rounds:
    """Runs a plan; `record` is called with every measurement as it is made."""

    def __init__(
        self,
        plan: Plan,
        setup: Setup,
        logs: Path,
        record: Callable[[Measured], None],
        say: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._setup = setup
        self._logs = logs
        self._record = record
        self._say = say
        self._starts: list[Started] = []
        self._measurements: list[Measured] = []
        self._count = 0

    def run(self) -> Outcome:
        """All rounds. Whatever happens, no server is left running."""
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, contextlib.ExitStack() as running:
            if self._plan.exclusive:
                self._run_exclusive(runner)
            else:
                self._run_together(runner, running)
        return Outcome(tuple(self._starts), tuple(self._measurements))

    def _run_exclusive(self, runner: asyncio.Runner) -> None:
        for number in range(1, self._plan.rounds + 1):
            for kind in rotated(self._plan.kinds, number - 1):
                with self._server(runner, kind) as server:
                    for level in self._plan.load.levels:
                        self._keep(runner.run(measure(server, self._plan.load, level, number)))

    def _run_together(self, runner: asyncio.Runner, running: contextlib.ExitStack) -> None:
        servers = {kind: running.enter_context(self._server(runner, kind)) for kind in self._plan.kinds}
        for number in range(1, self._plan.rounds + 1):
            for level in self._plan.load.levels:
                for kind in rotated(self._plan.kinds, number - 1):
                    self._keep(runner.run(measure(servers[kind], self._plan.load, level, number)))

    @contextlib.contextmanager
    def _server(self, runner: asyncio.Runner, kind: Kind) -> Iterator[ServerProcess]:
        self._count += 1
        folder = self._setup.work / str(self._count)
        log = self._logs / f"{self._count:02}-{kind.name}.log"
        began = time.monotonic()
        server = start(kind, self._setup, folder, log)
        try:
            server.wait_ready(kind.ready_path, self._plan.start_timeout_s)
            left_s = self._plan.start_timeout_s - (time.monotonic() - began)
            runner.run(wait_answer(server, self._plan.load, max(left_s, 1.0)))
            start_s = time.monotonic() - began
            self._starts.append(self._settle(server, start_s))
            yield server
        finally:
            server.stop()

    def _settle(self, server: ServerProcess, start_s: float) -> Started:
        time.sleep(self._plan.settle_s / 2)
        before, began = server.cpu_seconds(), time.monotonic()
        time.sleep(self._plan.settle_s / 2)
        cpu_s, idle_s = server.cpu_seconds() - before, time.monotonic() - began
        started = Started(server.name, start_s, cpu_s / idle_s if idle_s > 0 else 0.0, server.memory_bytes())
        self._say(
            f"{server.name}: up after {start_s:.1f} s, {started.memory_bytes / 2**30:.1f} GiB, "
            f"idle at {started.idle_cores:.2f} cores"
        )
        return started

    def _keep(self, result: Measured) -> None:
        self._measurements.append(result)
        self._record(result)
        self._say(
            f"round {result.round}/{self._plan.rounds}  {result.server:15} c={result.concurrency:<3} "
            f"{result.tokens_per_s:7.0f} tok/s  TTFT {result.ttft_p50_s * 1e3:6.1f} / "
            f"{result.ttft_p95_s * 1e3:6.1f} ms  ITL {result.itl_p50_s * 1e3:5.2f} ms  "
            f"CPU {result.server_cpu_s_per_token * 1e3:5.3f} ms/token  client {result.client_cores:4.0%} "
            f"(waits {result.client_wait:4.1%})  "
            f"others {result.other_cores:4.0%}"
        )


def rotated(kinds: Sequence[Kind], by: int) -> list[Kind]:
    """The servers, starting from another one each round, so that none always goes first."""
    at = by % len(kinds)
    return [*kinds[at:], *kinds[:at]]
