"""A starting replica has a lower priority than serving replicas."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

STARTING = 5
"""The niceness of a starting replica: a third of a serving process's weight. On two cores, two starting
replicas take one core and leave the other core to a running engine."""
_CAP_SYS_NICE = 23
_NICENESS_0 = 20
"""The value of RLIMIT_NICE with which a process may go back to niceness 0 (getrlimit(2))."""


@contextmanager
def lower_priority() -> Iterator[None]:
    """Run the block and the processes that it starts with a lower priority, then restore the priority.

    Does nothing if this process cannot restore its priority. On Linux that takes CAP_SYS_NICE, or an
    RLIMIT_NICE of 20 or more.
    """
    if not may_undo():
        yield
        return
    before = os.getpriority(os.PRIO_PROCESS, 0)
    _set(os.getpid(), before + STARTING)
    try:
        yield
    finally:
        group = os.getpgrp()  # the engine core is in it
        for process in (int(each.name) for each in Path("/proc").iterdir() if each.name.isdecimal()):
            with suppress(OSError):  # the process has ended
                if os.getpgid(process) == group:
                    _set(process, before)


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
