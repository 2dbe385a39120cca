"""Keep the load client from waiting for a core: it is the clock, and its lateness looks like latency.

vLLM's worker on CPU spins on a core it is pinned to. A client at normal priority that the kernel
places on that core was seen waiting 120 ms of a 130 ms reply: all frames seemed to arrive at once.
A client on another machine, as in real life, never waits for the servers' cores.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


def can_raise() -> bool:
    """Whether this user may (root or CAP_SYS_NICE). Without it, watch the report's `client waits`."""
    try:
        with raised():
            return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_RR
    except OSError:
        return False


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Run the block at the lowest real-time priority where allowed; processes it starts do not inherit it."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except PermissionError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, *before)
