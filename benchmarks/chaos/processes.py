"""The processes of the application, found by their titles below this one, and signals to them."""

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Iterable

import psutil

from benchmarks.chaos.observed import Look, Memory, Process
from benchmarks.chaos.roles import ENGINE_REPLICA, ROLES, ZYGOTE, Signal, role_of

_NUMBERS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
_GONE = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


class Processes:
    """Follows the descendants of some processes. Only those are ever seen, so only those get signals."""

    def __init__(self, roots: Iterable[int], nodes: dict[int, str] | None = None) -> None:
        """`nodes` names the process that leads each node; without, all are on one node without a name."""
        self.roots = list(roots)
        self.nodes = nodes or {}
        self._latest: tuple[Process, ...] = ()
        self._roles: dict[tuple[int, float], str] = {}
        self._node_of: dict[tuple[int, float], str] = {}

    def look(self) -> Look:
        """Those that have a role and live now."""
        found: list[Process] = []
        for process in self._tree():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                seen = self._seen(process)
                if seen is not None:
                    found.append(seen)
        if tuple(found) != self._latest:  # An hour has 18,000 looks, most of them alike.
            self._latest = tuple(found)
        return Look(time.monotonic(), self._latest)

    def memory(self, look: Look) -> Memory:
        """The memory of the processes in `look`."""
        sizes: Counter[str] = Counter()
        counts: Counter[str] = Counter()
        for process in look.processes:
            with contextlib.suppress(psutil.Error):
                sizes[process.role] += psutil.Process(process.pid).memory_info().rss
                counts[process.role] += 1
        return Memory(time.monotonic(), dict(sizes), dict(counts))

    def everything(self, node: str) -> tuple[int, ...]:
        """Every process of a node, with a role or not, its leader first."""
        pids = []
        for process in self._tree():
            with contextlib.suppress(psutil.Error):
                key = process.pid, process.create_time()
                if self._node(process, key) == node and process.status() not in _GONE:
                    pids.append(process.pid)
        return tuple(pids)

    def _tree(self) -> list[psutil.Process]:
        found: dict[int, psutil.Process] = {}
        for root in self.roots:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(root)
                for one in (process, *process.children(recursive=True)):
                    found[one.pid] = one
        return list(found.values())

    def _seen(self, process: psutil.Process) -> Process | None:
        with process.oneshot():
            key = process.pid, process.create_time()
            node = self._node(process, key)
            status = process.status()
            if status in _GONE:
                return None
            role = self._roles.get(key)
            if role in (None, ZYGOTE, ENGINE_REPLICA):
                role = role_of(
                    process.cmdline()
                )  # Workers get their titles late; a fork has its parent's first.
                if role is None:
                    return None
                self._roles[key] = role
            return Process(process.pid, os.getpgid(process.pid), role, node, key[1], status not in _STOPPED)

    def _node(self, process: psutil.Process, key: tuple[int, float]) -> str:
        """The node it was first seen on: an orphan has another parent, and the same node."""
        if key not in self._node_of:
            node = self.nodes.get(process.pid)
            if node is None and (parent := process.parent()) is not None:
                node = self._node_of.get((parent.pid, parent.create_time()))
            self._node_of[key] = node or ""
        return self._node_of[key]


def send(pids: Iterable[int], what: Signal) -> None:
    """Kill or stop these processes."""
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).send_signal(_NUMBERS[what])


def go_on(pids: Iterable[int]) -> None:
    """Continue stopped processes, those that still live."""
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).send_signal(signal.SIGCONT)


def strength(look: Look) -> dict[str, int]:
    """How many processes of each role run."""
    counts = Counter(process.role for process in look.processes if process.runs)
    return {role.name: counts[role.name] for role in ROLES if counts[role.name]}
