"""A process that forks another one for each job, with bounds on its CPU time and memory.

It is itself forked from the replica's process, once, so that it has all of vLLM without importing it anew
(13 s of CPU and 490 MB), and it has one thread, so that forking from it is safe at any time.
"""

import ctypes
import gc
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path

import msgspec
from vllm import envs
from vllm.utils.system_utils import set_process_title

_TITLE = "Grammars"
_NICENESS = 5
"""Below the streams of the same machine, and still a quarter of a core if they would take all of it."""
_PR_SET_PDEATHSIG = 1
_MOST_ANSWER_BYTES = 3500
"""Less than a pipe holds (4,096 bytes at the least), so that a job never waits for its reader."""


class Job(msgspec.Struct):
    """A job for a nursery. One without `payload` cancels the job of that number."""

    number: int
    payload: bytes | None = None


class Answer(msgspec.Struct):
    """The news of a job: that it has begun, and then its result or the signal that ended its process."""

    number: int
    result: bytes = b""
    ended_by: int = 0
    begun: bool = False


Work = Callable[[bytes], bytes]


@dataclass(slots=True)
class _Children:
    """The processes of the jobs under way: the job's number and the pipe with its result, by process id."""

    running: dict[int, tuple[int, int]] = field(default_factory=dict)

    def reap(self) -> list[Answer]:
        answers = []
        while self.running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            number, pipe = self.running.pop(pid)
            with open(pipe, "rb") as reader:
                result = reader.read()
            ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            answers.append(Answer(number, result, ended_by if ended_by or result else signal.SIGABRT))
        return answers

    def kill(self, number: int | None = None) -> None:
        for pid, (job, _) in self.running.items():
            if number is None or job == number:
                os.kill(pid, signal.SIGKILL)


def fork_nursery(prepare: Callable[[], Work], cpu_s: float, memory_bytes: int) -> tuple[int, Connection]:
    """Fork a nursery; return its process id and a connection that takes `Job` and gives `Answer`.

    Args:
        prepare: Called once in the new process; returns what runs each job.
        cpu_s: CPU seconds that a job may take, of all its threads together.
        memory_bytes: Address space that a job may add.
    """
    import multiprocessing  # noqa: PLC0415

    ours, theirs = multiprocessing.Pipe()
    try:
        pid = os.fork()
    except OSError:
        ours.close()
        theirs.close()
        raise
    if pid:
        theirs.close()
        return pid, ours
    try:
        _leave_parent(theirs.fileno())
        _serve(theirs, prepare(), cpu_s, memory_bytes)
    except BaseException:
        traceback.print_exc()  # to the replica's own standard error
        raise
    finally:
        os._exit(1)


def _leave_parent(kept: int) -> None:
    """Cut this process off from its parent's sockets and signals, and end it with its parent."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.closerange(3, kept)
    os.closerange(kept + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    os.nice(_NICENESS)
    _set_title()
    gc.freeze()


def _set_title() -> None:
    """Set a title of its own: people and tools find replicas by theirs."""
    ray = sys.modules.get("ray._raylet")
    if ray is None:
        set_process_title(_TITLE)
    else:  # Ray may have moved the arguments, and then only Ray finds them
        ray.setproctitle(f"{envs.VLLM_PROCESS_NAME_PREFIX}::{_TITLE}")


def _serve(connection: Connection, work: Work, cpu_s: float, memory_bytes: int) -> None:
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    children = _Children()
    while True:
        ready = wait([connection, woken])
        if woken in ready:
            os.read(woken, 4096)
            for answer in children.reap():
                connection.send_bytes(msgspec.msgpack.encode(answer))
        if connection in ready:
            try:
                job = msgspec.msgpack.decode(connection.recv_bytes(), type=Job)
            except EOFError:
                children.kill()
                os._exit(0)
            if job.payload is None:
                children.kill(job.number)
            else:
                try:
                    pid, pipe = _fork(work, job.payload, cpu_s, memory_bytes)
                except OSError:  # no process or no memory: the other jobs go on
                    answer = Answer(job.number, ended_by=signal.SIGKILL)
                else:
                    children.running[pid] = (job.number, pipe)
                    answer = Answer(job.number, begun=True)
                connection.send_bytes(msgspec.msgpack.encode(answer))


def _fork(work: Work, payload: bytes, cpu_s: float, memory_bytes: int) -> tuple[int, int]:
    reader, writer = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        raise
    if pid:
        os.close(writer)
        return pid, reader
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _bound(cpu_s, memory_bytes)
        os.write(writer, work(payload)[:_MOST_ANSWER_BYTES])
        os._exit(0)
    finally:
        os._exit(1)


def _bound(cpu_s: float, memory_bytes: int) -> None:
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
