"""CPU seconds and memory of a server, by what its processes are for."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress

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


def group_of(command_line: str) -> str:
    """Return what the process with this command line is for."""
    return next((name for name, pattern in _GROUPS if re.search(pattern, command_line)), "other")


def cpu_s(processes: Iterable[psutil.Process]) -> Counter[str]:
    """CPU seconds by group, of the children that these processes have reaped too."""
    return _by_group(processes, lambda process: sum(process.cpu_times()[:4]))


def pss_bytes(processes: Iterable[psutil.Process]) -> Counter[str]:
    """Proportional set sizes by group. Takes up to 20 ms for each process."""
    return _by_group(processes, lambda process: process.memory_full_info().pss)


def _by_group(processes: Iterable[psutil.Process], read: Callable[[psutil.Process], float]) -> Counter[str]:
    found: Counter[str] = Counter()
    for process in processes:
        with suppress(psutil.Error):
            found[group_of(" ".join(process.cmdline()))] += read(process)  # type: ignore[assignment]
    return found
