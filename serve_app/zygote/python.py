"""`tideserve-python`: Python for processes that need vLLM, forked from the zygote of the node.

`tideserve-python` takes Python's command line and represents the forked process to its parent: it forwards
signals and ends as the process ends. The process ends with `tideserve-python`. Ray starts the worker of an
engine replica this way (`py_executable`), and vLLM the engine core. Without a zygote, plain Python runs and
imports everything.

This module has few imports: it costs 7 MB and 0.1 s.
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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO

from serve_app import env
from serve_app.zygote.request import Request, is_own

STATUS = struct.Struct("!ii")
"""First the new process sends its id and 0, and at its end the zygote sends the id and the status of
`os.waitpid`."""

_IMPORTED = (
    "serve_app.engine.warm_imports:import_front_end",
    "--",
    "serve_app.patches.ray:draw_class_ids_from_kernel",
    "ray._private.workers.default_worker",
    "ray.serve._private.replica",
    "serve_app.engine.warm_imports:import_with_ray",
)
"""The imports of a zygote: vLLM at once, the rest with the first request."""
_RAYLET_SOCKET = "--raylet-name="
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_ANSWER_S = 600.0
"""Bound on a zygote's first answer. The zygote may still import, which can take 230 s for vLLM with GPUs from
a cold disk. If the zygote dies, the wait ends at once."""
REFUSED_S = 3600.0
"""How long no other zygote is started after one refused to fork. The next delays a start by its imports."""
_STATUS_S = 5.0
"""How long a process's status may come after its end."""
_LOOK_S = 0.02


def main() -> None:
    """Run Python's command line, in a fork of the zygote if there is one."""
    parent = os.getppid()
    os.environ[env.PROCESS_ASKED_AT] = str(time.time())
    env.find_compilers(os.environ)  # vLLM looks for them when it is imported
    path, owner = _zygote_socket(sys.argv[1:])
    connection = _connect(path, owner) if path else None
    signal.pthread_sigmask(
        signal.SIG_BLOCK, _FORWARDED
    )  # a signal that comes before the process exists is for it too
    process = _fork(connection, sys.argv[1:]) if connection is not None else None
    if connection is None or process is None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        os.environ.pop(env.ZYGOTE_SOCKET, None)
        os.execv(sys.executable, [sys.executable, *sys.argv[1:]])  # noqa: S606
    _represent(connection, process, parent)


def _zygote_socket(arguments: list[str]) -> tuple[str, int | None]:
    """Return the zygote's socket ("" for none), and the owner of a zygote that this process may start.

    None as the owner means that this process must not start a zygote. Otherwise the owner is the raylet, for
    Ray's workers and for their engine cores. A replica from a spare process may find that the zygote has
    died.
    """
    key, job = os.environ.get(env.ZYGOTE), os.environ.get(env.RAY_JOB)
    if path := os.environ.get(env.ZYGOTE_SOCKET):
        raylet, of_the_node = os.environ.get(env.RAYLET), path.endswith(f"/zygote-{key}-{job}")
        return path, int(raylet) if raylet and of_the_node else None
    name = next((word for word in arguments if word.startswith(_RAYLET_SOCKET)), None)
    if not key or not job or name is None:
        return "", None
    path = os.path.join(os.path.dirname(name.removeprefix(_RAYLET_SOCKET)), f"zygote-{key}-{job}")
    os.environ[env.ZYGOTE_SOCKET] = path
    return path, os.getppid()


def _connect(path: str, owner: int | None) -> socket.socket | None:
    connection = _try_connect(path)
    if connection is not None or owner is None:
        return connection
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one of several simultaneous workers starts the zygote
        connection = _try_connect(path)
        if connection is not None:
            return connection
        with suppress(KeyError, OSError):  # no early zygote, or another job has taken it
            early = early_socket(os.environ[env.EARLY_ZYGOTES], os.environ[env.ZYGOTE])
            os.close(os.open(f"{early}.taken", os.O_CREAT | os.O_EXCL, 0o600))
            os.symlink(early, path)
            connection = _try_connect(path)
        if connection is not None:
            return connection
        with suppress(FileNotFoundError), open(refusal_file(path), encoding="utf-8") as file:
            if 0 <= time.time() - os.fstat(file.fileno()).st_mtime < REFUSED_S:
                print(f"Not forked, because the zygote refused: {file.read()}.", file=sys.stderr, flush=True)
                return None
        with suppress(FileNotFoundError):
            os.unlink(path)
        folder = os.path.join(os.path.dirname(os.path.dirname(path)), "logs")
        log = os.path.join(folder, f"{os.path.basename(path)}.log") if os.path.isdir(folder) else os.devnull
        with open(log, "ab") as output:
            zygote = start_zygote(path, owner, os.environ, output)
        while connection is None and zygote.poll() is None:
            time.sleep(_LOOK_S)
            connection = _try_connect(path)
    return connection


def _try_connect(path: str) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    with suppress(OSError):
        connection.connect(path)
        if is_own(connection):
            return connection
    connection.close()
    return None


def early_socket(folder: str, key: str) -> str:
    """Return the socket of a zygote started before Ray. The first worker with its key takes the zygote."""
    return os.path.join(folder, f"zygote-{key}")


def refusal_file(path: str) -> str:
    """Return the file in which the zygote of a socket writes why it forks nothing."""
    return f"{os.path.realpath(path)}.refused"


def start_zygote(
    path: str,
    owner: int,
    environment: Mapping[str, str],
    output: IO[bytes] | int,
    modules: Sequence[str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a zygote that ends with the process `owner` and imports `modules` instead of the usual modules.

    The zygote gets its own process group, because Ray ends the process group of a worker that dies.
    """
    return subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "serve_app.zygote.zygote", path, str(owner), *(modules or _IMPORTED)],
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


def _represent(connection: socket.socket, process: int, parent: int) -> None:
    """Wait for `process` and end with the same status. Kill it if the parent of this process dies."""
    wake, wakened = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakened)  # otherwise a signal just before `select` would wait
    for each in _FORWARDED:
        signal.signal(each, lambda received, _: _signal(process, received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    for number in (0, 1, 2):
        with suppress(OSError):
            os.close(number)
    ended, orphaned = _open_pidfd(process), _open_pidfd(parent)
    watched = [each for each in (wake, connection.fileno(), ended, orphaned) if each is not None]
    while True:
        ready, _, _ = select.select(watched, [], [])
        if wake in ready:
            os.read(wake, 64)
        if connection.fileno() in ready or ended in ready:
            connection.settimeout(_STATUS_S)
            try:
                _end_as(_receive(connection)[1])
            except (OSError, EOFError):
                if ended is None or ended in ready:
                    os._exit(1)  # only the zygote knows how the process ended
                watched = [
                    each for each in (wake, ended, orphaned) if each is not None
                ]  # the zygote has died
        elif orphaned in ready:
            _signal(process, signal.SIGKILL)
            os._exit(1)


def _open_pidfd(process: int) -> int | None:
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
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
