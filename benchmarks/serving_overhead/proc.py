"""CPU, memory and children of processes, read from Linux's /proc."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Process:
    """One line of the process table, as it was when read."""

    pid: int
    parent: int
    name: str
    ended: bool
    """A zombie: it ended, and its parent has not asked how."""
    cpu_s: float
    """User and system time, its own and that of the children it has reaped."""


def tree(root: int) -> list[Process]:
    """`root` and every process below it; empty when there is no such process."""
    table = {process.pid: process for process in _table()}
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found, pending = [], [root]
    while pending:
        pid = pending.pop()
        if pid in table:
            found.append(table[pid])
        pending += children.get(pid, [])
    return found


def _table() -> Iterable[Process]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                stat = Path(entry.path, "stat").read_text(errors="replace")
            except (FileNotFoundError, ProcessLookupError):  # It ended meanwhile.
                continue
            yield parse_stat(stat)


def parse_stat(text: str) -> Process:
    """Read /proc/PID/stat, whose second field may hold spaces and brackets (proc(5))."""
    head, _, tail = text.rpartition(")")
    pid, _, name = head.partition(" (")
    fields = tail.split()
    ticks = sum(int(field) for field in fields[11:15])  # utime, stime, cutime, cstime
    return Process(int(pid), int(fields[1]), name, fields[0] in ("Z", "X"), ticks / _TICKS_PER_S)


def pss_bytes(pid: int) -> int:
    """Proportional set size: memory shared by n processes counts 1/n for each. 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (OSError, ValueError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def shared_memory(pids: Iterable[int]) -> set[Path]:
    """What Python's multiprocessing made in /dev/shm and these processes map."""
    mapped: set[int] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                if "/dev/shm/" in line:
                    mapped.add(int(line.split()[4]))
    # By inode: a semaphore is made under another name, the one that maps shows, and then linked.
    return {
        Path(entry.path)
        for entry in os.scandir("/dev/shm")
        if entry.name.startswith(("psm_", "sem.mp-")) and entry.inode() in mapped
    }


def waited_s() -> float:
    """Seconds this process was ready to run but had to wait for a core (/proc/self/schedstat)."""
    try:
        return int(Path("/proc/self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):  # A kernel without CONFIG_SCHED_INFO.
        return 0.0


def machine_busy_s() -> float:
    """CPU seconds all cores have spent on anything, time stolen by a hypervisor included."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(field) for field in fields[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S
