"""When processes end: what Linux does then, and whether one has ended."""

import ctypes
import signal
import sys

import psutil

# Numbers of options of prctl(2).
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def signal_on_parents_death(number: signal.Signals) -> None:
    """Have the kernel send this process `number` when its parent ends (Linux only)."""
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Have the kernel make this process the parent of every orphaned descendant (Linux only).

    Ray's daemons and vLLM's engine cores outlive a killed parent, and must still be found.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def is_alive(process: psutil.Process) -> bool:
    """Return whether `process` has not ended. A zombie has ended."""
    try:
        if process.is_running() and process.status() == psutil.STATUS_ZOMBIE:
            # Its first thread has ended. Another thread may be in the kernel and hold a GPU's memory.
            return bool(process.num_threads() > 1)
        return bool(process.is_running())
    except psutil.NoSuchProcess:
        return False


def _prctl(option: int, value: int) -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(option, int(value), 0, 0, 0)
