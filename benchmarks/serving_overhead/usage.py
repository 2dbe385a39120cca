"""CPU and memory of an application by process."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

from benchmarks.chaos.roles import role_of

_BENCHMARK = r" -m benchmarks\.common\.supervise "
_OTHERS = (
    ("grammars", r"^VLLM::Grammars"),
    ("vLLM's worker", r"^VLLM::Worker"),
    ("vLLM's own front end", r" -m vllm\.entrypoints\."),
    ("spare processes", r"^ray::IDLE"),
    ("dashboard modules", r"^ray-dashboard-"),
    ("autoscaler", r"/ray/autoscaler/.*monitor\.py "),
    ("log-monitor", r"/ray/_private/log_monitor\.py "),
)
"""Processes that have no role in `benchmarks.chaos`, by a pattern that is found in the command line."""


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds and memory, by name of process."""

    cpu_s: Mapping[str, float]
    """User and system time, with that of the children that these processes have reaped."""
    pss_bytes: Mapping[str, int] = field(default_factory=dict)
    """Proportional set size: memory shared by n processes counts 1/n for each."""

    @property
    def total_s(self) -> float:
        """All of the CPU time."""
        return sum(self.cpu_s.values())

    def since(self, before: "Usage") -> "Usage":
        """Return the CPU time used after `before`.

        A process that has ended counts with its parent, so its own name may have less than nothing.
        """
        names = self.cpu_s.keys() | before.cpu_s.keys()
        used = {name: self.cpu_s.get(name, 0.0) - before.cpu_s.get(name, 0.0) for name in names}
        return Usage(used, self.pss_bytes)


def name_of(command_line: Sequence[str]) -> str | None:
    """Return the name of the process with this command line; None for one of the benchmark's own."""
    line = " ".join(command_line)
    if re.search(_BENCHMARK, line):
        return None
    found = next((name for name, pattern in _OTHERS if re.search(pattern, line)), None)
    return found or role_of(command_line) or "other"


def read_usage(processes: Iterable[psutil.Process], *, memory: bool = False) -> Usage:
    """Read those of `processes` that have not ended. Memory takes up to 20 ms for each process."""
    cpu_s, pss_bytes = Counter[str](), Counter[str]()
    for process in processes:
        with suppress(psutil.Error):
            name = name_of(process.cmdline())
            if name is not None:
                cpu_s[name] += sum(process.cpu_times()[:4])
                if memory:
                    pss_bytes[name] += process.memory_full_info().pss
    return Usage(dict(cpu_s), dict(pss_bytes))  # `asdict` cannot copy a Counter
