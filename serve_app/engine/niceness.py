"""A replica that starts has a lower priority than replicas that serve, until it is ready."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

STARTING = 5
"""At this niceness a process has a third of the weight of one that serves: two starting replicas on two cores
take one core, and leave the other to a running engine."""
_CAP_SYS_NICE = 23
_NICENESS_0 = 20
"""The value of RLIMIT_NICE with which a process may go back to niceness 0 (getrlimit(2))."""


@contextmanager
def lower_priority() -> Iterator[None]:
    """Run the block, and all that it starts, with a lower priority; restore the priority afterwards.

    Does nothing where this process could not undo it: Linux lets only root, or a process whose RLIMIT_NICE
    is 20 or more, lower a niceness.
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
            with suppress(OSError):  # it has ended meanwhile
                if os.getpgid(process) == group:
                    _set(process, before)


def may_undo() -> bool:
    """Whether this process may lower its niceness again."""
    if resource.getrlimit(resource.RLIMIT_NICE)[0] >= _NICENESS_0:
        return True
    status = Path("/proc/self/status").read_text(encoding="ascii")
    effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> _CAP_SYS_NICE & 1)


def _set(process: int, niceness: int) -> None:
    """Set every thread: each has a niceness of its own, and its threads and processes inherit it."""
    for thread in Path(f"/proc/{process}/task").iterdir():
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, int(thread.name), niceness)
