"""Processes as Linux shows them: whether a process id still belongs to the process that had it."""

from __future__ import annotations

import ctypes
import signal
import sys
from dataclasses import dataclass

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Process:
    """A process, told apart from a later one with the same id by its time of start."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """Return the process with this id; None if there is none or it has ended."""
        fields = _fields(pid)
        return None if fields is None or fields[0] in "ZX" else cls(pid, int(fields[19]))

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return Process.of(self.pid) == self

    @property
    def stopped(self) -> bool:
        """Whether a signal such as SIGSTOP has stopped it."""
        fields = _fields(self.pid)
        return fields is not None and fields[0] == "T"


def parent_of(pid: int) -> int:
    """Return the id of its parent; 0 if there is none."""
    fields = _fields(pid)
    return 0 if fields is None else int(fields[1])


def ancestor(pid: int, name: str) -> Process | None:
    """Return the nearest ancestor of that name; None if there is none."""
    while pid := parent_of(pid):
        if _name(pid) == name:
            return Process.of(pid)
    return None


def signal_on_parents_death(number: signal.Signals) -> None:
    """Have the kernel send this process `number` when its parent ends (Linux only)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def _fields(pid: int) -> list[str] | None:
    """Return the fields of proc_pid_stat(5) from the state on; the name before it may contain blanks."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
