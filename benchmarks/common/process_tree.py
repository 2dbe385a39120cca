"""CPU and memory of a process and everything below it (Linux)."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil


def tree(root: int) -> list[psutil.Process]:
    """`root` and every process below it; empty when there is no such process."""
    try:
        process = psutil.Process(root)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_s(processes: Iterable[psutil.Process]) -> float:
    """User and system time of `processes` and of the children they have reaped."""
    seconds = (
        times.user + times.system + times.children_user + times.children_system
        for times in _each(processes, lambda process: process.cpu_times())
    )
    return float(sum(seconds))


def pss_bytes(processes: Iterable[psutil.Process]) -> int:
    """Proportional set size: memory shared by n processes counts 1/n for each."""
    return sum(_each(processes, lambda process: process.memory_full_info().pss))


def shared_memory(processes: Iterable[psutil.Process]) -> set[Path]:
    """The files of Python's multiprocessing in /dev/shm that these processes map."""
    mapped: set[int] = set()
    for process in processes:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{process.pid}/maps").read_text(errors="replace").splitlines():
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
    """CPU seconds that all cores have spent, time stolen by a hypervisor included."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)


def _each(processes: Iterable[psutil.Process], read: Callable[[psutil.Process], Any]) -> Iterator[Any]:
    """Read each process, except those that have ended meanwhile."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            yield read(process)
