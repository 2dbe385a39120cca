"""What a traced start tells of its phases."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import httpx
import psutil

from benchmarks.cold_start.asking import Answer, url_of
from benchmarks.cold_start.phases import (
    Observed,
    Phase,
    core_up,
    engines,
    tideserve_phases,
    vllm_phases,
)
from benchmarks.cold_start.spans import Span
from benchmarks.cold_start.systems import Start
from benchmarks.common.server_process import ServerError, ServerProcess
from serve_app.engine.startup_phases import created

_LOOK_S = 0.05
_SENT_S = 10.0
"""Spans are sent 0.2 s after their end."""
_INSPECTION = "vllm.model_executor.models.registry"

Inspections = dict[int, tuple[int, float, float]]
"""By process: its parent, when it was created, and when it was last seen."""


@contextmanager
def watched(servers: Sequence[ServerProcess]) -> Iterator[Inspections]:
    """Look for processes in which vLLM inspects a model's class, while the block runs."""
    found: Inspections = {}
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(_LOOK_S):
            for process in (process for server in servers for process in server.processes()):
                with suppress(psutil.Error, ProcessLookupError):
                    if _INSPECTION in process.cmdline():
                        found[process.pid] = (process.ppid(), created(process.pid), time.time())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


@dataclass(frozen=True, slots=True)
class Trace:
    """A start that has come to its end."""

    start: Start
    servers: Sequence[ServerProcess]
    spans: Sequence[Span]
    """Fills for a moment yet."""
    inspections: Inspections
    zero: float
    answers: Mapping[str, Answer]
    """By replica of ours if there are several, else by server: `0`, `1`..."""

    def phases(self) -> list[list[Phase]]:
        """Return the phases of each replica, in Unix time.

        Raises:
            ServerError: if not all spans come.
        """
        found = self._engines()
        seen = Observed(self._created(), tuple(self.inspections.values()))
        if not self.start.system.ours:
            return [
                vllm_phases(self.zero, log, spans, seen, answer.sent, answer.token)
                for log, spans, answer in self._of_servers(found)
            ]
        decided = self._decided() if self.start.system.at_zero else None
        return [
            tideserve_phases(self.zero, decided, log, spans, seen, self._answer(replica).token)
            # Both are in the order in which engine cores came up.
            for (replica, log), spans in zip(self._logs(), found, strict=True)
        ]

    def _engines(self) -> list[list[Span]]:
        """Wait until the spans of all engines have come."""
        found: list[list[Span]] = []
        for _ in range(int(_SENT_S / _LOOK_S)):
            found = engines(self.spans)
            if len(found) == self.start.replicas:
                return found
            time.sleep(_LOOK_S)
        raise ServerError(f"spans of {len(found)} of {self.start.replicas} engines have come")

    def _created(self) -> dict[int, float]:
        found = {}
        for process in (process for server in self.servers for process in server.processes()):
            with suppress(ProcessLookupError):
                found[process.pid] = created(process.pid)
        return found

    def _of_servers(self, found: Sequence[Sequence[Span]]) -> Iterator[tuple[str, Sequence[Span], Answer]]:
        for number, server in enumerate(self.servers):
            processes = {process.pid for process in server.processes()}
            spans = next(mine for mine in found if mine[0].process in processes)
            yield server.log.read_text(errors="replace"), spans, self.answers[str(number)]

    def _answer(self, replica: str) -> Answer:
        return self.answers[replica if self.start.replicas > 1 else "0"]

    def _decided(self) -> float:
        """Return when the policy decided to leave zero."""
        url = f"{url_of(self.servers[0])}/autoscaling/decisions?limit=100"
        decisions = httpx.get(url, timeout=_SENT_S, trust_env=False).json()["decisions"]
        return min((float(one["at"]) for one in decisions if one["new_target"] > 0), default=self.zero)

    def _logs(self) -> list[tuple[str, str]]:
        """Return the name and the log of each engine replica, in the order in which their cores came up."""
        logs = {
            path.stem.rpartition("_")[2]: path.read_text(errors="replace")
            for path in self.start.ray_logs.glob("replica_*_Engine-*.log")
        }
        up = [(at, replica, log) for replica, log in logs.items() if (at := core_up(log)) is not None]
        if len(up) != self.start.replicas:
            raise ServerError(f"{len(up)} of {self.start.replicas} replicas have logged their phases")
        return [(replica, log) for _, replica, log in sorted(up)]
