"""The compile sandbox: a process that forks one process per compile job, with bounds on CPU time and memory.

The sandbox is forked once from the replica's process, so it shares vLLM (490 MB) and imports nothing. It has
one thread, so its forks are safe. With traces on, OpenTelemetry starts a second thread in it, which only
waits. OpenTelemetry's fork handler makes the locks of that thread anew.

For each job the replica passes one end of a socket pair to the sandbox. The job's process sends `_BEGUN`,
reads the payload, and sends `_RESULT`. If the process ends without a result, the sandbox sends `_ENDED` and
the signal. If the replica closes its end, the kernel ends the job's process.
"""

import asyncio
import fcntl
import gc
import logging
import os
import resource
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vllm import envs
from vllm.utils.system_utils import set_process_title

from serve_app.processes import signal_on_parents_death

logger = logging.getLogger("ray.serve")

Work = Callable[[bytes], bytes]
"""Runs one job, from the bytes of its payload to the bytes of its result."""

_TITLE = "Grammars"
_NICENESS = 5
"""A lower priority than streams. A job gets a quarter of a core that other processes would fill, and
half of one that an engine on the CPU would fill (`startup.CPU_CORE`)."""
_BEGUN, _RESULT, _ENDED = b"b", b"r", b"e"
_LENGTH_BYTES = 4
_ACCEPT_S = 30.0
"""Bound on the time until a job begins, including the sandbox's start (2 s with a vocabulary of 128,000). A
sandbox that takes longer hangs or was stopped, and is replaced."""
_MOST_WALL = 10.0
"""Wall-clock seconds that a job may take per CPU second on a busy machine."""


class SandboxEndedError(Exception):
    """The sandbox could not be started, or ended without an answer."""


@dataclass(frozen=True, slots=True)
class JobEnd:
    """The result of a compile job, or the signal that ended its process."""

    result: bytes = b""
    ended_by: int = 0


class Sandbox:
    """Runs compile jobs in a sandbox, which it starts if there is none.

    Args:
        prepare: Called once in the sandbox's process; returns the function that runs each job.
        cpu_s: CPU seconds of a job, over all its threads.
        memory_bytes: Address space that a job may allocate.
        accept_s: Seconds until a job must begin.
        most_wall: Wall-clock seconds that a job may take per CPU second.
    """

    def __init__(
        self,
        prepare: Callable[[], Work],
        cpu_s: float,
        memory_bytes: int,
        accept_s: float = _ACCEPT_S,
        most_wall: float = _MOST_WALL,
    ) -> None:
        self._prepare = prepare
        self._cpu_s = cpu_s
        self._memory_bytes = memory_bytes
        self._accept_s = accept_s
        self._wall_s = cpu_s * most_wall
        self.pid = 0
        self._control: socket.socket | None = None

    def start(self) -> None:
        """Fork the sandbox before this process grows. After a failure, the first job tries again."""
        with suppress(SandboxEndedError):
            self._ensure_started()

    def stop(self) -> None:
        """End the sandbox. A running job ends when its `run` is cancelled."""
        if self._control is not None:
            self._discard(self._control)

    async def run(self, payload: bytes) -> JobEnd:
        """Run one job. Cancelling the call ends the job's process.

        Raises:
            TimeoutError: the machine was too busy for the job.
            SandboxEndedError: the sandbox ended twice in a row.
        """
        try:
            return await self._run(payload)
        except SandboxEndedError:
            return await self._run(payload)

    async def _run(self, payload: bytes) -> JobEnd:
        control = self._ensure_started()
        try:
            return await self._exchange(control, payload)
        except SandboxEndedError:
            logger.warning("the compile sandbox does not answer and is replaced")
            self._discard(control)
            raise

    async def _exchange(self, control: socket.socket, payload: bytes) -> JobEnd:
        ours, theirs = socket.socketpair()
        with ours:
            ours.setblocking(False)
            try:
                with theirs:
                    socket.send_fds(control, [_BEGUN], [theirs.fileno()])
                async with asyncio.timeout(self._accept_s):
                    length = len(payload).to_bytes(_LENGTH_BYTES, "big")
                    await asyncio.get_running_loop().sock_sendall(ours, length + payload)
                    tag = await _receive(ours, 1)
            except OSError as error:  # a TimeoutError is an OSError
                raise SandboxEndedError from error
            async with asyncio.timeout(self._wall_s):
                if tag == _BEGUN:
                    tag = await _receive(ours, 1)
                if tag == _ENDED:
                    return JobEnd(ended_by=(await _receive(ours, 1))[0])
                length = await _receive(ours, _LENGTH_BYTES)
                return JobEnd(await _receive(ours, int.from_bytes(length, "big")))

    def _ensure_started(self) -> socket.socket:
        if self._control is None:
            try:
                self.pid, self._control = fork_sandbox(self._prepare, self._cpu_s, self._memory_bytes)
            except OSError as error:  # no process or no memory: other requests must go on
                logger.warning("the compile sandbox cannot be started: %s", error)
                raise SandboxEndedError from error
        return self._control

    def _discard(self, control: socket.socket) -> None:
        if control is not self._control:
            return
        self._control = None
        control.close()
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        # In a thread, because a process that waits for a device or a file system does not end at once.
        threading.Thread(target=_wait_for_end, args=(self.pid,), daemon=True).start()


def _wait_for_end(pid: int) -> None:
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


async def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        try:
            more = await asyncio.get_running_loop().sock_recv(connection, size - len(data))
        except ConnectionError:
            more = b""
        if not more:
            raise SandboxEndedError
        data += more
    return data


def fork_sandbox(prepare: Callable[[], Work], cpu_s: float, memory_bytes: int) -> tuple[int, socket.socket]:
    """Fork a sandbox; return its process id and the socket that takes the sockets of jobs."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            pid = os.fork()
        except OSError:
            ours.close()
            raise
        if pid:
            ours.setblocking(False)
            return pid, ours
        try:
            _leave_parent(theirs.fileno())
            _serve(theirs, prepare(), cpu_s, memory_bytes)
        except BaseException:
            traceback.print_exc()  # to the replica's own standard error
        finally:
            os._exit(1)


def _leave_parent(kept: int) -> None:
    """Detach this process from its parent's sockets and signals, and have it end with its parent."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
    signal_on_parents_death(signal.SIGKILL)
    os.closerange(3, kept)
    os.closerange(kept + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    os.nice(_NICENESS)
    # Its own title, because people and tools find replicas by title. Ray may have moved the process's
    # arguments, and then only Ray can set the title.
    if ray := sys.modules.get("ray._raylet"):
        ray.setproctitle(f"{envs.VLLM_PROCESS_NAME_PREFIX}::{_TITLE}")
    else:
        set_process_title(_TITLE)
    gc.freeze()


def _serve(control: socket.socket, work: Work, cpu_s: float, memory_bytes: int) -> None:
    # A crash ends a job at once. The handlers that libraries install write a stack trace, allocate memory for
    # it, and hang if the signal came during an allocation.
    for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL):
        signal.signal(number, signal.SIG_DFL)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    jobs: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([control.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _report_ends(jobs)
        if control.fileno() in ready:
            _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            if not descriptors:  # the replica has closed its end
                os._exit(0)
            job = socket.socket(fileno=descriptors[0])
            try:
                pid = os.fork()
            except OSError:  # no process or no memory: other jobs must go on
                _report_end(job, signal.SIGKILL)
                continue
            if not pid:
                for other in (control, *jobs.values()):
                    other.close()
                _run_job(job, work, cpu_s, memory_bytes)
            jobs[pid] = job


def _report_ends(jobs: dict[int, socket.socket]) -> None:
    while jobs:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        # A job without a signal has sent its result or raised an error, such as MemoryError.
        _report_end(jobs.pop(pid), os.WTERMSIG(status) if os.WIFSIGNALED(status) else signal.SIGABRT)


def _report_end(job: socket.socket, ended_by: int) -> None:
    with job, suppress(OSError):  # the replica needs no report after a result
        job.sendall(_ENDED + bytes([ended_by]))


def _run_job(job: socket.socket, work: Work, cpu_s: float, memory_bytes: int) -> None:
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGIO, signal.SIGPROF):
            signal.signal(number, signal.SIG_DFL)
        job.sendall(_BEGUN)
        with job.makefile("rb") as reader:
            payload = reader.read(int.from_bytes(reader.read(_LENGTH_BYTES), "big"))
        _end_with_peer(job)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + memory_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        result = work(payload)
        job.sendall(_RESULT + len(result).to_bytes(_LENGTH_BYTES, "big") + result)
    finally:
        os._exit(0)


def _end_with_peer(job: socket.socket) -> None:
    """Have the kernel end this process with SIGIO when the other end of `job` is closed.

    A compile in C++ cannot poll the socket. If a kernel lacks this signal, the bound on CPU time ends the
    process.
    """
    with suppress(OSError):
        fcntl.fcntl(job, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(job, fcntl.F_SETFL, fcntl.fcntl(job, fcntl.F_GETFL) | os.O_ASYNC)
    with suppress(BlockingIOError):
        if not job.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):  # already closed
            os._exit(0)
