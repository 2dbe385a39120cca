"""The processes of a local Ray cluster: notice their ends, and end them all.

The raylet ends with its agents, and then connections are refused. Without the GCS, all other processes go on
for 60 s until Ray ends them. Ray's driver notices neither. Every process of the cluster is a descendant of
this process (`adopt_orphans`), so the process table shows each end.
"""

import contextlib
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from serve_app.processes import is_alive

_SEARCH_S = 1.0
_LOG_FOLDER = re.compile(r"--log[-_]dir=(.*)")


@dataclass(frozen=True, slots=True)
class _Role:
    """One of Ray's processes."""

    name: str
    command: str
    """A regular expression for the start of its command line, without the program's folder."""
    log: str
    needed: bool = False
    """Whether no request can be served without it."""
    then: str = ""
    """The consequence of its end."""


_ENDS = ": the raylet ends with it"
_NO_DASHBOARD = ": requests are served, but `tideserve knobs` and Ray's own `serve` commands cannot connect"
_WAITED = b"Timed out waiting for file"
_TOO_BUSY = (
    "Ray gives its agents 15 s to start, and has no setting for this time; this machine is too busy: start "
    "again when fewer processes run"
)
"""The raylet itself speaks of a bug in Ray."""
_ROLES = (
    # A process ends because of an earlier one in this list, so ends seen together are reported in this order.
    _Role("Ray's dashboard", r".* .*ray/dashboard/dashboard\.py( |$)", "dashboard.log", then=_NO_DASHBOARD),
    _Role("Ray's dashboard agent", "ray::DashboardAgent", "dashboard_agent.log", then=_ENDS),
    _Role("Ray's runtime environment agent", "ray::RuntimeEnvAgent", "runtime_env_agent.log", then=_ENDS),
    _Role("Ray's GCS", r"gcs_server( |$)", "gcs_server.out", needed=True),
    _Role("the raylet", r"raylet( |$)", "raylet.out", needed=True),
)


class Cluster:
    """Watches the processes of one local cluster. Once all are found, `look` makes one system call."""

    def __init__(
        self, descendants: Callable[[], Iterable[psutil.Process]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._descendants = descendants
        self._clock = clock
        self._found: dict[str, psutil.Process] = {}
        self._ends = select.poll()
        self._pidfds: list[int] = []
        self._searched_at = float("-inf")
        self._ended: set[str] = set()
        self.log_folder: Path | None = None
        """The folder of Ray's logs; None until one of Ray's processes has been found."""
        self.lost = False
        """Whether the GCS or the raylet has ended: no request can be served."""

    def look(self) -> list[str]:
        """Return a line for each process that has ended since the last look: the consequence, and its log."""
        if len(self._found) < len(_ROLES) and self._clock() - self._searched_at >= _SEARCH_S:
            self._search()
            self._searched_at = self._clock()
        if len(self._pidfds) == len(self._found) and not self._ends.poll(0):
            return []
        lines = []
        for role in _ROLES:
            process = self._found.get(role.name)
            if process is None or role.name in self._ended or is_alive(process):
                continue
            self._ended.add(role.name)
            self.lost = self.lost or role.needed
            log = self.log_folder / role.log if self.log_folder else f"{role.log} of Ray's session"
            lines.append(f"{role.name} (process {process.pid}) ended{role.then}; its log: {log}")
            with contextlib.suppress(OSError):  # the line above names the log all the same
                if role.needed and _WAITED in Path(log).with_suffix(".err").read_bytes():
                    lines.append(_TOO_BUSY)
        return lines

    def _search(self) -> None:
        for process in self._descendants():
            try:
                words = process.cmdline()
            except psutil.Error:
                continue
            command = " ".join([*(Path(word).name for word in words[:1]), *words[1:4]])
            for role in _ROLES:
                if role.name not in self._found and re.match(role.command, command):
                    self._found[role.name] = process
                    self._watch(process)
                    folders = [found[1] for word in words if (found := _LOG_FOLDER.match(word))]
                    self.log_folder = self.log_folder or next(map(Path, folders), None)

    def _watch(self, process: psutil.Process) -> None:
        """Watch the end of `process` through a pidfd, which Linux has since 5.3."""
        with contextlib.suppress(OSError, AttributeError):
            self._pidfds.append(os.pidfd_open(process.pid))
            self._ends.register(self._pidfds[-1], select.POLLIN)

    def close(self) -> None:
        while self._pidfds:
            os.close(self._pidfds.pop())


@dataclass(frozen=True, slots=True)
class Stopped:
    """The result of `stop_descendants`."""

    killed: tuple[str, ...] = ()
    """Names of the processes that SIGTERM did not end."""
    left: tuple[str, ...] = ()
    """Descriptions of the processes that SIGKILL did not end."""


def stop_descendants(grace_s: float, killed_within_s: float = 10.0) -> Stopped:
    """End all descendants with SIGTERM, after `grace_s` seconds with SIGKILL.

    A fault of a GPU or of a network file system can leave a process in uninterruptible sleep for ever. So the
    wait ends `killed_within_s` seconds after the first SIGKILL.
    """
    me = psutil.Process()
    processes = me.children(recursive=True)
    for process in processes:
        _signal(process, signal.SIGTERM)
    psutil.wait_procs(processes, timeout=grace_s)
    killed: dict[int, str] = {}
    end = time.monotonic() + killed_within_s
    while alive := [process for process in me.children(recursive=True) if is_alive(process)]:
        if time.monotonic() >= end:
            break
        names = {process.pid: _name(process) for process in alive}
        killed |= {process.pid: names[process.pid] for process in alive if _signal(process, signal.SIGKILL)}
        psutil.wait_procs(alive, timeout=min(1.0, killed_within_s))
        time.sleep(0.05)
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    return Stopped(tuple(killed.values()), tuple(filter(None, map(_describe, alive))))


def _name(process: psutil.Process) -> str:
    try:
        return f"process {process.pid} ({' '.join(process.cmdline()[:3]) or process.name()})"
    except psutil.Error:  # a zombie has no command line
        return f"process {process.pid}"


def _describe(process: psutil.Process) -> str:
    """Return a process's number, name and state; "" if it has ended."""
    try:
        state = process.status()
        if state == psutil.STATUS_DISK_SLEEP:
            state = "D, uninterruptible sleep: the kernel waits for a device or a file system"
        return f"process {process.pid} ({process.name()}), in state {state}"
    except psutil.NoSuchProcess:
        return ""


def reap_orphans(own: int) -> None:
    """Reap adopted processes that have ended, but not the child `own`.

    `waitid` finds them; psutil would read every process of the machine.
    """
    if not sys.platform.startswith("linux"):
        return  # nothing has been adopted
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid == own:
                return  # the caller waits for `own` itself
            os.waitpid(ended.si_pid, 0)


def _signal(process: psutil.Process, number: int) -> bool:
    """Send a signal. Returns False if the process has ended or belongs to another user."""
    try:
        process.send_signal(number)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
    return True
