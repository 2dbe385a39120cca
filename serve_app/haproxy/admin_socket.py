"""A running HAProxy, as its admin socket shows and changes it."""

import contextlib
import os
import re
import signal
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from serve_app.haproxy.configuration import FRONTEND
from serve_app.haproxy.sockets import accepts

RUNNING = "supervisor.pid"
"""The id of the process that holds the sockets of this folder."""

_ASK_S = 1.0


class AdminSocket:
    """The admin socket at `path`."""

    def __init__(self, path: str) -> None:
        self._path = path

    def ask(self, command: str) -> bytes:
        """Return HAProxy's answer to a command. Raises OSError without an answer within a second."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_ASK_S)
            connection.connect(self._path)
            connection.sendall(command.encode() + b"\n")
            answer = bytearray()
            while chunk := connection.recv(65536):
                answer += chunk
            return bytes(answer)

    def answers(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(self.ask("show info"))
        return False

    def is_idle(self) -> bool:
        """Return whether HAProxy answers and has no connection."""
        with contextlib.suppress(OSError):
            return re.search(rb"^CurrConns: 0$", self.ask("show info"), re.MULTILINE) is not None
        return False

    def pause(self) -> None:
        """Have HAProxy stop accepting for a while. New connections wait in the listening sockets."""
        self._order([f"disable frontend {FRONTEND}"])

    def resume(self) -> None:
        self._order([f"enable frontend {FRONTEND}"])

    def close(self, frontends: Iterable[str]) -> None:
        """Have HAProxy close its listening sockets. Returns when that is done, or HAProxy does not answer."""
        self._order(f"shutdown frontend {frontend}" for frontend in frontends)

    def _order(self, commands: Iterable[str]) -> None:
        with contextlib.suppress(OSError):
            for command in commands:
                self.ask(command)


@dataclass(frozen=True, slots=True)
class Predecessor:
    """The former supervisor of this folder and its running HAProxy. Either process may have ended."""

    supervisor: psutil.Process | None
    haproxy: AdminSocket

    @classmethod
    def find(cls) -> Self | None:
        """Return the former supervisor, if a HAProxy of this folder runs."""
        with contextlib.suppress(OSError, ValueError):
            pid = int(Path(RUNNING).read_text(encoding="utf-8"))
            process = None
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                if process.cwd() != os.getcwd():  # another process has the id by now
                    process = None
            if process is not None or accepts(f"{pid}.sock"):
                return cls(process, AdminSocket(f"{pid}.sock"))
        return None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the supervisor, if it lives. Without it, its HAProxy goes on for 15 s."""
        if self.supervisor is not None:
            with contextlib.suppress(psutil.Error):
                self.supervisor.send_signal(number)
