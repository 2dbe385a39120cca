"""Processes a command started, directly or not, and their end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time

import psutil

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Have the kernel hand this process every descendant whose own parent dies (Linux only).

    Ray's daemons and vLLM's engine cores outlive a killed parent; adopted, they can still be found.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def stop_descendants(grace_s: float) -> int:
    """End every descendant of this process: SIGTERM, then SIGKILL after `grace_s` seconds.

    Returns:
        How many had to be killed.
    """
    me = psutil.Process()
    processes = me.children(recursive=True)
    for process in processes:
        _signal(process, signal.SIGTERM)
    psutil.wait_procs(processes, timeout=grace_s)
    killed = 0
    while alive := [p for p in me.children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]:
        for process in alive:
            killed += _signal(process, signal.SIGKILL)
        psutil.wait_procs(alive, timeout=1)
        time.sleep(0.05)
    _reap()
    return killed


def reap_orphans(own: int) -> None:
    """Take leave of adopted processes that have ended, which would stay zombies; not of the child `own`."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess, ChildProcessError):
            if child.pid != own and child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)


def _signal(process: psutil.Process, number: int) -> int:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return 0
    return 1


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass
