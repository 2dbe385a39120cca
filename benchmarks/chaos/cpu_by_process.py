"""CPU of an application by process."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from benchmarks.chaos.roles import role_of

_BENCHMARK = r" -m benchmarks\.common\.supervise "
_OTHERS = (
    ("grammars", r"^VLLM::Grammars"),
    ("vLLM's own front end", r" -m vllm\.entrypoints\."),
    ("spare processes", r"^ray::IDLE"),
    ("dashboard modules", r"^ray-dashboard-"),
    ("autoscaler", r"/ray/autoscaler/.*monitor\.py "),
    ("log-monitor", r"/ray/_private/log_monitor\.py "),
)
"""Processes that no attack of `benchmarks.chaos` is for, by a pattern that is found in the command line."""


@dataclass(frozen=True, slots=True)
class Reading:
    """CPU seconds and numbers of processes, by name."""

    cpu_s: Mapping[str, float]
    """User and system time, of the children that these processes have reaped too."""
    count: Mapping[str, int]

    @property
    def total_s(self) -> float:
        """All of it."""
        return sum(self.cpu_s.values())

    def since(self, before: "Reading", scale: float = 1.0) -> "Reading":
        """Return what was used after `before`, times `scale`.

        A process that has ended counts with its parent, so its own name may have less than nothing.
        """
        names = self.cpu_s.keys() | before.cpu_s.keys()
        used = {name: scale * (self.cpu_s.get(name, 0.0) - before.cpu_s.get(name, 0.0)) for name in names}
        return Reading(used, self.count)


def name_of(command_line: Sequence[str]) -> str | None:
    """Return the name of the process with this command line; None for one of the benchmark's own."""
    line = " ".join(command_line)
    if re.search(_BENCHMARK, line):
        return None
    found = next((name for name, pattern in _OTHERS if re.search(pattern, line)), None)
    return found or role_of(command_line) or "other"


def read(processes: Iterable[psutil.Process]) -> Reading:
    """Read those of `processes` that have not ended."""
    cpu_s: Counter[str] = Counter()
    count: Counter[str] = Counter()
    for process in processes:
        with suppress(psutil.Error):
            name = name_of(process.cmdline())
            if name is not None:
                cpu_s[name] += sum(process.cpu_times()[:4])
                count[name] += 1
    return Reading(cpu_s, count)
