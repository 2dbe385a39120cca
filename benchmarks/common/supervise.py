"""Run one server so that no process of it outlives the benchmark.

    python -m benchmarks.common.supervise PARENT_PID COMMAND [ARG ...]

Ray and vLLM start processes that leave their parents (setsid, double forks). This small parent is a child
subreaper: every orphan below it becomes its child, so its process tree is the whole server. It ends the whole
tree on a signal, when the server exits, and when the benchmark dies (PR_SET_PDEATHSIG, even after `kill -9`).
"""

import contextlib
import os
import signal
import subprocess
import sys
from types import FrameType

from serve_app.cli.ray_processes import stop_descendants
from serve_app.processes import adopt_orphans, signal_on_parents_death

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

POLITE_S = 15.0
"""How long the server's first process may take to stop on SIGTERM."""
TERM_S = 5.0
"""How long the other processes may take to stop on a SIGTERM of their own before SIGKILL."""


class _StopError(Exception):
    """A signal asked this supervisor to stop."""


def _stop(number: int, frame: FrameType | None) -> None:
    raise _StopError(signal.Signals(number).name)


def main(argv: list[str]) -> int:
    """Start the command, wait for its end or a signal, and end every process below."""
    parent, command = int(argv[0]), argv[1:]
    for which in _SIGNALS:
        signal.signal(which, _stop)
    child: subprocess.Popen[bytes] | None = None
    code = 0
    try:
        adopt_orphans()
        signal_on_parents_death(signal.SIGTERM)
        if os.getppid() != parent:  # It died before that.
            return 1
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        code = _wait_for(child.pid)
        print(f"supervise: the server ended by itself with exit code {code}", flush=True)
        child = None
    except _StopError as asked:
        print(f"supervise: received {asked}", flush=True)
    for which in _SIGNALS:  # Another signal must not interrupt the cleaning up.
        signal.signal(which, signal.SIG_IGN)
    if child is not None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(POLITE_S)
    stop_descendants(TERM_S)
    return code


def _wait_for(pid: int) -> int:
    """Reap children, orphans among them, until `pid` ends; return its exit code."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
