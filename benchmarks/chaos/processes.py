"""The application's processes, found by their titles below one process, and signals to them."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator

import psutil

from benchmarks.chaos.roles import ENGINE_REPLICA, ZYGOTE, Signal, role_of
from benchmarks.chaos.trace import Process, Snapshot

_NUMBERS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
_ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


class Processes:
    """The descendants of `root`. Only those are ever seen, so only those get signals."""

    def __init__(self, root: int) -> None:
        self._root = root
        self.excluded = {os.getpid()}
        """Processes that do not belong to the application, although they are below `root`."""
        self._latest: tuple[Process, ...] = ()
        self._roles: dict[tuple[int, float], str] = {}

    def snapshot(self) -> Snapshot:
        """The processes with a role that live now."""
        found = []
        for process in self._descendants():
            with contextlib.suppress(psutil.Error, ProcessLookupError), process.oneshot():
                status, role = process.status(), self._role(process)
                if role is not None and status not in _ENDED:
                    group, runs = os.getpgid(process.pid), status not in _STOPPED
                    found.append(Process(process.pid, group, role, process.create_time(), runs))
        if tuple(found) != self._latest:  # An hour has 18,000 snapshots, most of them alike.
            self._latest = tuple(found)
        return Snapshot(time.monotonic(), self._latest)

    def pids(self) -> list[int]:
        """Every process of the application, with a role or without."""
        found = []
        for process in self._descendants():
            with contextlib.suppress(psutil.Error):
                if process.status() not in _ENDED:
                    found.append(process.pid)
        return found

    def _descendants(self) -> Iterator[psutil.Process]:
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(self._root)
            for process in (root, *root.children(recursive=True)):
                if process.pid not in self.excluded:
                    yield process

    def _role(self, process: psutil.Process) -> str | None:
        key = process.pid, process.create_time()
        role = self._roles.get(key)
        # Workers get their titles late, and a fork has its parent's title at first.
        if role in (None, ZYGOTE, ENGINE_REPLICA):
            role = role_of(process.cmdline())
            if role is not None:
                self._roles[key] = role
        return role


def send_signal(pid: int, what: Signal) -> None:
    """Kill or stop a process."""
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).send_signal(_NUMBERS[what])


def resume(pid: int) -> None:
    """Continue a stopped process, if it still lives."""
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).send_signal(signal.SIGCONT)
