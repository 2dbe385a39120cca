"""Run one server so that nothing of it can outlive the benchmark.

    python -m benchmarks.serving_overhead.supervise PARENT_PID COMMAND [ARG ...]

Ray and vLLM start processes that leave their parents (setsid, double forks). This small parent is a
child subreaper: every orphan below it comes back to it, so its process tree is the whole server,
for counting CPU as well as for stopping. When it is told to stop, when the server exits, or when
the benchmark itself dies (PR_SET_PDEATHSIG, even after `kill -9`), it ends the whole tree.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from types import FrameType

from benchmarks.serving_overhead import proc

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

POLITE_S = 15.0
"""How long the server's first process may take to stop on SIGTERM."""
TERM_S = 5.0
"""How long what is left may take to stop on its own SIGTERM before SIGKILL."""
KILL_S = 10.0
"""How long killed processes may take to disappear."""


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


def become_subreaper() -> None:
    """Make orphaned descendants of this process its children (Linux)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_descendants(*, term_s: float = TERM_S, kill_s: float = KILL_S) -> list[str]:
    """End every descendant of this process: SIGTERM, `term_s` seconds, SIGKILL. Returns survivors."""
    for which, seconds in ((signal.SIGTERM, term_s), (signal.SIGKILL, kill_s)):
        deadline = time.monotonic() + seconds
        told: set[int] = set()
        while alive := _descendants():
            for pid in alive.keys() - told:  # Also those that appeared since the last look.
                told.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, which)
            if time.monotonic() >= deadline:
                break
            time.sleep(0.05)
    return [f"{pid} {name}" for pid, name in _descendants().items()]


def _descendants() -> dict[int, str]:
    """Names by pid of everything below this process that has not ended."""
    _reap()
    me = os.getpid()
    return {p.pid: p.name for p in proc.tree(me) if p.pid != me and not p.ended}


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass


class _StopError(Exception):
    """A signal asked this supervisor to stop."""


class _StopOnce:
    """Signal handler: the first signal raises, later ones cannot interrupt the cleaning up."""

    def __init__(self) -> None:
        self.armed = True

    def __call__(self, signum: int, frame: FrameType | None) -> None:
        if self.armed:
            self.armed = False
            raise _StopError(signal.Signals(signum).name)


def _wait_for(pid: int) -> int:
    """Reap children until `pid` ends; its exit code."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def main(argv: list[str]) -> int:
    """Start the command, wait for its end or a signal, leave nothing behind."""
    parent, command = int(argv[0]), argv[1:]
    stop = _StopOnce()
    for which in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(which, stop)
    child: subprocess.Popen[bytes] | None = None
    code = 0
    try:
        become_subreaper()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # It died before PR_SET_PDEATHSIG was in place.
            return 1
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        code = _wait_for(child.pid)
        print(f"supervise: the server ended by itself with exit code {code}", flush=True)
        child = None
    except _StopError as asked:
        print(f"supervise: received {asked}", flush=True)
    stop.armed = False
    if child is not None:
        _ask(child.pid)
    left = end_descendants()
    if left:
        print(f"supervise: could not end {', '.join(left)}", flush=True)
        return 1
    return code


def _ask(pid: int) -> None:
    """SIGTERM to the server's first process, and up to POLITE_S for its own clean shutdown."""
    try:
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + POLITE_S
        while time.monotonic() < deadline:
            if os.waitpid(pid, os.WNOHANG) != (0, 0):
                return
            time.sleep(0.05)
    except (ProcessLookupError, ChildProcessError):
        pass


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
