"""`tideserve-python`: Python for processes that need vLLM, forked from the zygote of the node.

It takes Python's command line and stands for the process: it passes signals on, and ends as that process
ends, which ends with it. Ray starts the worker of an engine replica through it (`py_executable`), and vLLM
the engine core. Where no zygote can be had it becomes plain Python, whose imports take about ten seconds.

This module imports only what is needed to ask: it costs 9 MB and 40 ms.
"""

import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import IO

from serve_app.zygote.request import Request, is_own

KEY = "TIDESERVE_ZYGOTE"
"""Names the zygote whose environment a process shares. Without it, no zygote is used."""
FOLDER = "TIDESERVE_ZYGOTE_FOLDER"
"""Where zygotes listen, if not beside the raylet."""
SOCKET = "TIDESERVE_ZYGOTE_SOCKET"
"""Where the zygote of a forked process listens."""

STATUS = struct.Struct("!ii")
"""What a zygote answers: the new process's id and 0, and at its end its id and `os.waitpid`'s status."""

EXECUTABLE = os.path.join(os.path.dirname(sys.executable), "tideserve-python")
"""This command, as the package's installation puts it beside Python."""

_IMPORTED = (
    "ray._private.workers.default_worker",
    "ray.serve._private.replica",
    "serve_app.engine.engine_deployment",
    "serve_app.engine.warm_imports",
)
"""What a zygote imports."""
_RAYLET_SOCKET = "--raylet-name="
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_ANSWER_S = 120.0
"""How long a zygote may take, which may still be importing: 10 s of CPU."""
_LOOK_S = 0.02


def main() -> None:
    """Run Python's command line, in a fork of the zygote if there is one."""
    parent = os.getppid()
    path, log = _zygote(sys.argv[1:])
    connection = _connect(path, log) if path else None
    process = _fork(connection, sys.argv[1:]) if connection is not None else None
    if connection is None or process is None:
        os.environ.pop(SOCKET, None)
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])  # noqa: S606
    _stand_for(connection, process, parent)


def _zygote(arguments: list[str]) -> tuple[str, str]:
    """Return the zygote's socket, "" for none, and the log of a zygote that this process may start.

    A worker of Ray's may start one, which ends with its raylet; a process that a worker starts may not ("").
    """
    if path := os.environ.get(SOCKET):
        return path, ""
    key = os.environ.get(KEY)
    raylet = next((word for word in arguments if word.startswith(_RAYLET_SOCKET)), None)
    if not key or raylet is None:
        return "", ""
    sockets = os.path.dirname(raylet.removeprefix(_RAYLET_SOCKET))
    path = zygote_socket(os.environ.get(FOLDER) or sockets, key)
    os.environ[SOCKET] = path
    return path, os.path.join(os.path.dirname(sockets), "logs", f"zygote-{key}.log")


def zygote_socket(folder: str, key: str) -> str:
    """Return the path at which the zygote named `key` listens."""
    return os.path.join(folder, f"zygote-{key}")


def _connect(path: str, log: str) -> socket.socket | None:
    connection = _connected(path)
    if connection is not None or not log:
        return connection
    with open(f"{path}.lock", "w") as lock, open(log, "ab") as output:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of workers that start at once, one starts the zygote
        connection = _connected(path)
        if connection is not None:
            return connection
        with suppress(FileNotFoundError):
            os.unlink(path)
        zygote = start_zygote(path, os.getppid(), os.environ, output)
        while connection is None and zygote.poll() is None:
            time.sleep(_LOOK_S)
            connection = _connected(path)
    return connection


def _connected(path: str) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    with suppress(OSError):
        connection.connect(path)
        if is_own(connection):
            return connection
    connection.close()
    return None


def start_zygote(
    path: str, owner: int, environment: Mapping[str, str], output: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a zygote that listens at `path` and ends with the process `owner`.

    It has a process group of its own, because Ray ends the group of a worker that dies.
    """
    return subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "serve_app.zygote.zygote", path, str(owner), *_IMPORTED],
        env={**environment, "OPENBLAS_NUM_THREADS": "1"},  # its threads would begin with the import
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        process_group=0,
    )


def _fork(connection: socket.socket, arguments: list[str]) -> int | None:
    """Return the id of the new process, or None if the zygote has died or hangs."""
    connection.settimeout(_ANSWER_S)
    try:
        Request.of_this_process(arguments, without=connection.fileno()).send(connection)
        process = _receive(connection)[0]
        connection.settimeout(None)
        return process
    except (OSError, EOFError):
        return None


def _receive(connection: socket.socket) -> tuple[int, int]:
    data = connection.recv(STATUS.size, socket.MSG_WAITALL)
    if len(data) < STATUS.size:
        raise EOFError
    pid, status = STATUS.unpack(data)
    return pid, status


def _stand_for(connection: socket.socket, process: int, parent: int) -> None:
    """Wait for `process` and end as it does; end it if the parent of this process dies."""
    for each in _PASSED_ON:
        signal.signal(each, lambda received, _: _signal(process, received))
    for number in (0, 1, 2):
        with suppress(OSError):
            os.close(number)
    ended, orphaned = _opened(process), _opened(parent)
    watched = [each for each in (connection.fileno(), ended, orphaned) if each is not None]
    while True:
        ready, _, _ = select.select(watched, [], [])
        if connection.fileno() in ready:
            try:
                _end_as(_receive(connection)[1])
            except (OSError, EOFError):  # the zygote has died, and the process goes on
                watched.remove(connection.fileno())
                connection.close()
                if ended is None:
                    os._exit(1)
        elif orphaned in ready:
            _signal(process, signal.SIGKILL)
            os._exit(1)
        elif ended in ready and connection.fileno() < 0:
            os._exit(1)  # how it ended, only the zygote would know


def _opened(process: int) -> int | None:
    try:
        return os.pidfd_open(process)
    except OSError:  # it has ended, or the kernel is older than 5.3
        return None


def _signal(process: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, number)


def _end_as(status: int) -> None:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
