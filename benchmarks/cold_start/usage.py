"""CPU seconds and memory of a server, by what its processes are for."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

_GROUPS = (
    ("other", r"benchmarks\.common\.supervise"),
    ("engine replica", r"^ray::ServeReplica:[^:]+:Engine-"),
    ("API server", r"^VLLM::API|vllm\.entrypoints\."),
    ("engine core", r"^VLLM::"),
    ("zygote", r"^tideserve::Zygote|/tideserve-python "),
    ("ingress", r"^ray::ServeReplica:[^:]+:Ingress\b|haproxy|HAProxy"),
    ("Ray", r"ray|serve_app"),
)
"""By a pattern that is found in the command line; the first one that matches counts; else `other`."""
GROUPS = (*(name for name, _ in _GROUPS[1:]), "other")


@dataclass(frozen=True, slots=True)
class Usage:
    """What the groups of processes have used so far (CPU seconds), and hold now (PSS bytes)."""

    cpu_s: Mapping[str, float]
    pss_bytes: Mapping[str, int]

    def cpu_since(self, before: "Usage") -> dict[str, float]:
        """Return the CPU seconds of each group since `before`."""
        return {group: self.cpu_s[group] - before.cpu_s.get(group, 0.0) for group in self.cpu_s}


NOTHING = Usage({}, {})


def group_of(command_line: str) -> str:
    """Return what the process with this command line is for."""
    return next((name for name, pattern in _GROUPS if re.search(pattern, command_line)), "other")


def usage(processes: Sequence[psutil.Process]) -> Usage:
    """Return what these processes use, their children that have ended and were reaped included."""
    cpu_s: Counter[str] = Counter()
    pss: Counter[str] = Counter()
    for process in processes:
        with suppress(psutil.Error):
            cpu_s[_group(process)] += sum(process.cpu_times()[:4])
    for process in processes:  # afterwards, because it takes up to 20 ms for each
        with suppress(psutil.Error):
            pss[_group(process)] += process.memory_full_info().pss
    return Usage(cpu_s, pss)


def _group(process: psutil.Process) -> str:
    return group_of(" ".join(process.cmdline()))
