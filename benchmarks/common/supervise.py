"""Run one server so that nothing of it can outlive the benchmark.

    python -m benchmarks.common.supervise PARENT_PID COMMAND [ARG ...]

Ray and vLLM start processes that leave their parents (setsid, double forks). This small parent is a
child subreaper: every orphan below it comes back to it, so its process tree is the whole server,
for counting CPU as well as for stopping. When it is told to stop, when the server exits, or when
the benchmark itself dies (PR_SET_PDEATHSIG, even after `kill -9`), it ends the whole tree.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from types import FrameType

from serve_app.cli.ray_processes import adopt_orphans, stop_descendants

_PR_SET_PDEATHSIG = 1

POLITE_S = 15.0
"""How long the server's first process may take to stop on SIGTERM."""
TERM_S = 5.0
"""How long what is left may take to stop on its own SIGTERM before SIGKILL."""


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


def main(argv: list[str]) -> int:
    """Start the command, wait for its end or a signal, leave nothing behind."""
    parent, command = int(argv[0]), argv[1:]
    stop = _StopOnce()
    for which in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(which, stop)
    child: subprocess.Popen[bytes] | None = None
    code = 0
    try:
        adopt_orphans()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
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
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(POLITE_S)
    stop_descendants(TERM_S)
    return code


def _wait_for(pid: int) -> int:
    """Reap children, orphans among them, until `pid` ends; its exit code."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
