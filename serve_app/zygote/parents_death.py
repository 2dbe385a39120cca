"""Signal a process when its parent ends."""

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1
"""Linux's number of this option of prctl(2)."""


def signal_on_parents_death(number: signal.Signals) -> None:
    """Have the kernel send this process `number` when its parent ends (Linux only)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
