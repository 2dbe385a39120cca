"""Keep one HAProxy running, answer Ray in its place, and hand its sockets to the next supervisor."""

import contextlib
import json
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import psutil

from serve_app.haproxy.configuration import OPEN, Source
from serve_app.haproxy.sockets import Predecessor, dismissed, give, listen_unix, wait_until_closed
from serve_app.zygote.parents_death import signal_on_parents_death

HANDOVER = "handover.sock"
RUNNING = "supervisor.json"
"""Which processes hold the sockets of this folder."""
LAST = "last.cfg"
"""Ray's last configuration that had routes and with which HAProxy ran."""

_RESTART_S = 0.1
_TICK_S = 1.0
_BLIND_TICK_S = 0.1
"""Where the kernel does not tell of the ends of processes: pidfds are of Linux 5.3."""
_START_S = 20.0
_ASK_S = 1.0
_CHECK_EVERY_S = 1.0
_HUNG_AFTER_S = 5.0
_SLOWEST_RESTART_S = 5.0
_WAIT_FOR_SUCCESSOR_S = 30.0
"""Ray needs 3 to 5 s to start another manager, and more on a busy node."""
_LET_GO_S = 1.0
"""HAProxy closes its listening sockets within milliseconds of the signal; a successor waits for 2 s."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to keep running. Paths are relative to the folder of Ray's configuration."""

    binary: str
    configuration: str
    own_socket: str
    """HAProxy's own admin socket."""
    source: Source
    """Ray's configuration, which says where Ray expects the admin socket."""
    sockets: dict[tuple[str, int], socket.socket]
    front: psutil.Process
    """The process that Ray started and follows."""
    manager: psutil.Process | None
    """Its parent: Ray's actor."""
    raylet: psutil.Process | None
    alone: str = ""
    """The content of `configuration` once no HAProxy before this one accepts; "" if it is the same."""


def ask(path: str, command: str) -> bytes:
    """Return HAProxy's answer to a command. Raises OSError without an answer within a second."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_ASK_S)
        connection.connect(path)
        connection.sendall(command.encode() + b"\n")
        answer = bytearray()
        while chunk := connection.recv(65536):
            answer += chunk
        return bytes(answer)


def alive(process: psutil.Process) -> bool:
    """Return whether it has not ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


class Keeper:
    """One HAProxy, from its start until it has drained."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._selector = selectors.DefaultSelector()
        self._listeners: dict[str, socket.socket] = {}
        self._haproxy: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._restart_in_s = _RESTART_S
        self._tick_s = _TICK_S
        self._answered = 0.0
        self._asked = 0.0
        self._lost_since: float | None = None
        self._draining = False
        self._stopping = False
        self._held_back = bool(plan.alone)

    def run(self, predecessor: Predecessor | None) -> int:
        """Keep HAProxy running; return the exit status: 1 if it does not start."""
        self._wake_on_signals()
        signal.signal(signal.SIGUSR1, lambda *_: self._drain())
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGINT, self._on_stop)
        if not self._start_first():
            return 1
        for process in (self._plan.front, self._plan.manager, self._plan.raylet):
            if process is not None:
                self._wake_on_end(process.pid)
        if predecessor is not None:
            predecessor.dismiss()
        if self._held_back:
            Path(self._plan.configuration).write_text(self._plan.alone, encoding="utf-8")
            self._open()
        self._publish()
        while not self._stopping and not (self._draining and self._haproxy is None):
            self._step()
        if self._stopping:
            self._signal(signal.SIGTERM)
        return 0

    def _start_first(self) -> bool:
        self._start(time.monotonic())
        give_up = self._started + _START_S
        while self._haproxy is not None and self._haproxy.poll() is None:
            with contextlib.suppress(OSError):
                if ask(self._plan.own_socket, "show info"):
                    return True
            now = time.monotonic()
            if now > give_up or not alive(self._plan.front):
                self._signal(signal.SIGKILL)
            if now > give_up + _ASK_S:  # the kernel does not end it
                break
            time.sleep(0.02)
        return False

    def _open(self) -> None:
        """Let HAProxy say what is up: only it accepts connections now. `_check` tries again if this fails."""
        with contextlib.suppress(OSError):
            ask(self._plan.own_socket, OPEN)
            self._held_back = False

    def _publish(self) -> None:
        """Open the sockets for Ray and the next supervisor; note the processes to end if these are silent."""
        plan = self._plan
        if plan.source.backends:
            Path(LAST).write_text(plan.source.text, encoding="utf-8")
        Path(RUNNING).write_text(json.dumps([plan.front.pid, os.getpid()]), encoding="utf-8")
        for path, accept in ((HANDOVER, self._hand_over), (plan.source.admin_socket, self._relay)):
            self._listeners[path] = listen_unix(path)
            self._selector.register(self._listeners[path], selectors.EVENT_READ, accept)

    def _wake_on_signals(self) -> None:
        """Have a signal end `select`, which would go on after its handler."""
        wake, wakened = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakened, warn_on_full_buffer=False)
        self._selector.register(wake, selectors.EVENT_READ, lambda _: os.read(wake, 64))

    def _wake_on_end(self, pid: int) -> None:
        """Have the end of a process end `select`, once. The process table then tells what follows."""
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        except OSError:
            self._tick_s = _BLIND_TICK_S
            return
        self._selector.register(descriptor, selectors.EVENT_READ, self._ended)

    def _ended(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)

    def _wait_s(self, now: float) -> float:
        """Return for how long nothing has to be done unless something happens."""
        if self._draining:
            return self._tick_s
        ended = self._haproxy is None
        due = self._started + self._restart_in_s if ended else self._asked + _CHECK_EVERY_S
        return max(0.0, min(self._tick_s, due - now))

    def _step(self) -> None:
        for key, _ in self._selector.select(self._wait_s(time.monotonic())):
            if key.fd in self._selector.get_map():  # an event before this one may have closed it
                key.data(key.fileobj)
        now = time.monotonic()
        if self._haproxy is not None and self._haproxy.poll() is not None:
            self._say(f"HAProxy ended with status {self._haproxy.returncode}")
            self._haproxy = None
        self._guard(now)
        if self._draining or self._stopping:
            return
        if self._haproxy is None:
            if now >= self._started + self._restart_in_s:
                self._start(now)
        elif now >= self._asked + _CHECK_EVERY_S:
            self._check()

    def _start(self, now: float) -> None:
        """Start HAProxy, later each time if it ends at once."""
        fast = now - self._started < _SLOWEST_RESTART_S
        self._restart_in_s = min(2 * self._restart_in_s, _SLOWEST_RESTART_S) if fast else _RESTART_S
        self._haproxy = subprocess.Popen(  # noqa: S603
            [self._plan.binary, "-db", "-f", self._plan.configuration],
            pass_fds=[listener.fileno() for listener in self._plan.sockets.values()],
            stdin=subprocess.DEVNULL,
            # Without its keeper it finishes its streams, and leaves the port to the next HAProxy.
            preexec_fn=lambda: signal_on_parents_death(signal.SIGUSR1),  # noqa: PLW1509 - one thread
        )
        self._started = self._answered = self._asked = now
        self._wake_on_end(self._haproxy.pid)

    def _check(self) -> None:
        """Continue a HAProxy that was stopped; replace one that has not answered for 5 s."""
        assert self._haproxy is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(self._haproxy.pid).status() == psutil.STATUS_STOPPED:
                self._say("HAProxy was stopped by a signal; it is continued")
                self._signal(signal.SIGCONT)
        if self._held_back:
            self._open()
        with contextlib.suppress(OSError):
            if ask(self._plan.own_socket, "show info"):
                self._answered = time.monotonic()
        self._asked = time.monotonic()
        if self._asked > self._answered + _HUNG_AFTER_S:
            self._say(f"HAProxy has not answered for {_HUNG_AFTER_S:g} s; it is replaced")
            self._signal(signal.SIGKILL)

    def _guard(self, now: float) -> None:
        """End with the node. Without the process that Ray follows or Ray's actor, wait for a successor."""
        plan = self._plan
        if plan.raylet is not None and not alive(plan.raylet):
            self._signal(signal.SIGKILL)
            self._stopping = True
            return
        if not alive(plan.front):
            self._close(plan.source.admin_socket)  # so that Ray finds it gone and starts another manager
        elif plan.manager is None or alive(plan.manager):
            return
        self._lost_since = self._lost_since or now
        if not self._draining and (plan.raylet is None or now > self._lost_since + _WAIT_FOR_SUCCESSOR_S):
            self._drain()

    def _relay(self, listener: socket.socket) -> None:
        """Answer Ray as HAProxy would, with the process id that Ray follows."""
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.settimeout(_ASK_S)
            command = connection.recv(4096).decode(errors="replace").partition("\n")[0]
            answer = ask(self._plan.own_socket, command)
            pid = b"Pid: %d" % self._plan.front.pid
            connection.sendall(re.sub(rb"^Pid: \d+$", pid, answer, count=1, flags=re.MULTILINE))

    def _hand_over(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        try:
            give(connection, self._plan.sockets)
            self._selector.register(connection, selectors.EVENT_READ, self._handed_over)
        except OSError:
            connection.close()

    def _handed_over(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        if dismissed(connection):
            self._drain()
        connection.close()

    def _drain(self) -> None:
        """Let HAProxy finish its streams. Only the successor then has the listening sockets."""
        if self._draining:
            return
        self._draining = True
        self._close(*self._listeners)
        self._signal(signal.SIGUSR1)
        if self._haproxy is not None and self._haproxy.poll() is None:
            wait_until_closed(self._haproxy.pid, self._plan.sockets.values(), _LET_GO_S)
        for listener in self._plan.sockets.values():
            listener.close()
        with contextlib.suppress(psutil.NoSuchProcess):
            self._plan.front.send_signal(signal.SIGUSR1)

    def _close(self, *paths: str) -> None:
        for path in paths:
            if listener := self._listeners.pop(path, None):
                self._selector.unregister(listener)
                listener.close()

    def _signal(self, number: signal.Signals) -> None:
        if self._haproxy is not None and self._haproxy.poll() is None:
            self._haproxy.send_signal(number)

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):
            print(f"tideserve: {line}", file=sys.stderr, flush=True)
