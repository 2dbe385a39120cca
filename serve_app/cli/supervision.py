"""The processes of a local Ray cluster without which it serves nobody, and what to say of their end.

The raylet ends with its agents, and then connections are refused; without the GCS what runs goes on for 60 s
until Ray ends it. Ray's driver notices neither. Every process of the cluster is a descendant of ours
(`descendants.py`), so that it is the process table that tells, and not a port that has stopped answering.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

_SEARCH_S = 1.0
_LOG_FOLDER_OPTIONS = ("--log_dir=", "--log-dir=")


@dataclass(frozen=True, slots=True)
class Role:
    """A process of Ray's, how its command line begins, and its log."""

    name: str
    log: str
    matches: Callable[[list[str]], bool]
    needed: bool = False
    """Whether nobody is served without it."""
    then: str = ""
    """What its end means."""


def _executable(name: str) -> Callable[[list[str]], bool]:
    return lambda line: Path(line[0]).name == name


def _title(title: str) -> Callable[[list[str]], bool]:
    return lambda line: line[0].startswith(title)


def _script(path: str) -> Callable[[list[str]], bool]:
    return lambda line: any(part.endswith(path) for part in line[1:4])


_ROLES = (
    # In the order in which one ends with another, should both ends be seen at once.
    Role(
        "Ray's dashboard",
        "dashboard.log",
        _script("ray/dashboard/dashboard.py"),
        then="requests are served, but `tideserve knobs`, `serve deploy` and `serve status` find nobody",
    ),
    Role(
        "Ray's dashboard agent",
        "dashboard_agent.log",
        _title("ray::DashboardAgent"),
        then="the raylet ends with it",
    ),
    Role(
        "Ray's runtime environment agent",
        "runtime_env_agent.log",
        _title("ray::RuntimeEnvAgent"),
        then="the raylet ends with it",
    ),
    Role("Ray's GCS", "gcs_server.out", _executable("gcs_server"), needed=True),
    Role("the raylet", "raylet.out", _executable("raylet"), needed=True),
)


class Cluster:
    """Watches the processes of one local cluster; a look costs some reads of `/proc` once all are found."""

    def __init__(
        self,
        descendants: Callable[[], Iterable[psutil.Process]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._descendants = descendants
        self._clock = clock
        self._found: dict[str, psutil.Process] = {}
        self._folder: Path | None = None
        self._searched_at = float("-inf")
        self._ended: set[str] = set()
        self.lost = False
        """Whether something has ended without which nobody is served."""

    def look(self) -> list[str]:
        """What has ended since the last look, what that means, and where its log is."""
        if len(self._found) < len(_ROLES) and self._clock() - self._searched_at >= _SEARCH_S:
            self._search()
            self._searched_at = self._clock()
        told = []
        for role in _ROLES:
            process = self._found.get(role.name)
            if process is None or role.name in self._ended or _lives(process):
                continue
            self._ended.add(role.name)
            self.lost = self.lost or role.needed
            means = f": {role.then}" if role.then else ""
            told.append(f"{role.name} (process {process.pid}) ended{means}; its log: {self._log(role)}")
        return told

    def _log(self, role: Role) -> str:
        return str(self._folder / role.log) if self._folder is not None else f"{role.log} of Ray's session"

    def _search(self) -> None:
        for process in self._descendants():
            try:
                line = process.cmdline()
            except psutil.Error:
                continue
            if not line or not line[0]:
                continue
            for role in _ROLES:
                if role.name not in self._found and role.matches(line):
                    self._found[role.name] = process
                    self._folder = self._folder or _log_folder(line)


def _log_folder(line: list[str]) -> Path | None:
    for part in line:
        for option in _LOG_FOLDER_OPTIONS:
            if part.startswith(option):
                return Path(part.removeprefix(option))
    return None


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
