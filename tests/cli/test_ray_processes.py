"""The processes watched are real, with the command lines of Ray's."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from serve_app.cli.ray_processes import Cluster, reap_orphans
from tests.timing import Clock
from tests.uninterruptible import needs_freezer, uninterruptible

LOGS = "/tmp/ts/session_1/logs"
GCS = ("/site-packages/ray/core/src/ray/gcs/gcs_server", f"--log_dir={LOGS}")
RAYLET = ("/site-packages/ray/core/src/ray/raylet/raylet", "--raylet_socket_name=x")
AGENT = ("ray::DashboardAgent",)
RUNTIME_ENV = ("ray::RuntimeEnvAgent",)
DASHBOARD = ("python", "/site-packages/ray/dashboard/dashboard.py", "--port=8265")
REPLICA = ("ray::ServeReplica:tideserve:Ingress",)


class Processes:
    """Stand-ins by the first word of their command line."""

    def __init__(self) -> None:
        self.started: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *lines: tuple[str, ...]) -> None:
        for line in lines:
            # The words after `-` are for the program, which sleeps.
            options = ["-c", "import time; time.sleep(600)", *line[1:]]
            process = subprocess.Popen([line[0], *options], executable=sys.executable)
            self.started[line[0]] = process
            while not psutil.Process(process.pid).cmdline():  # the kernel sets it last
                pass

    def kill(self, line: tuple[str, ...], *, reap: bool = True) -> int:
        process = self.started.pop(line[0])
        process.kill()
        if reap:
            process.wait()
        else:
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie until then, and after
            self.started[line[0]] = process
        return process.pid

    def list(self) -> list[psutil.Process]:
        return [psutil.Process(process.pid) for process in self.started.values()]


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes()
    yield made
    for process in made.started.values():
        process.send_signal(signal.SIGKILL)
        process.wait()


GCS_ENDED = f"Ray's GCS (process {{}}) ended; its log: {LOGS}/gcs_server.out"
RAYLET_ENDED = f"the raylet (process {{}}) ended; its log: {LOGS}/raylet.out"
AGENT_ENDED, RUNTIME_ENV_ENDED = (
    f"Ray's {name} agent (process {{}}) ended: the raylet ends with it; its log: {LOGS}/{log}_agent.log"
    for name, log in (("dashboard", "dashboard"), ("runtime environment", "runtime_env"))
)
DASHBOARD_ENDED = (
    "Ray's dashboard (process {}) ended: requests are served, but `tideserve knobs` and Ray's own `serve` "
    f"commands cannot connect; its log: {LOGS}/dashboard.log"
)


@pytest.mark.parametrize(
    ("ended", "told", "lost"),
    [
        ([], [], False),
        ([REPLICA], [], False),  # Ray replaces it
        ([GCS], [GCS_ENDED], True),
        ([RAYLET], [RAYLET_ENDED], True),
        ([AGENT], [AGENT_ENDED], False),
        ([RUNTIME_ENV], [RUNTIME_ENV_ENDED], False),
        ([DASHBOARD], [DASHBOARD_ENDED], False),
        ([RAYLET, AGENT], [RAYLET_ENDED, AGENT_ENDED], True),
    ],
)
@pytest.mark.parametrize("reap", [True, False])
def test_ends_are_told_once_with_the_cause_first(
    processes: Processes, ended: list[tuple[str, ...]], told: list[str], lost: bool, reap: bool
) -> None:
    processes.start(GCS, RAYLET, AGENT, RUNTIME_ENV, DASHBOARD, REPLICA)
    cluster = Cluster(processes.list)
    assert cluster.look() == []

    lines = [
        line.format(processes.kill(each, reap=reap)) for each, line in zip(ended, [*told, ""], strict=False)
    ]

    assert cluster.look() == [line for line in reversed(lines) if line]
    assert cluster.lost is lost
    assert cluster.look() == []
    cluster.close()


def test_a_raylet_that_waited_in_vain_says_why(processes: Processes, tmp_path: Path) -> None:
    gcs = (GCS[0], f"--log_dir={tmp_path}/logs")
    (tmp_path / "logs").mkdir()
    waited = "likely discovered a bug in Ray. Timed out waiting for file /tmp/ray/metrics_agent_port_1"
    (tmp_path / "logs/raylet.err").write_bytes(b"\xff\n" + waited.encode())
    processes.start(gcs, RAYLET)
    cluster = Cluster(processes.list)
    assert cluster.look() == []
    processes.kill(RAYLET)

    _, why = cluster.look()
    assert "15 s" in why
    cluster.close()


def test_what_starts_later_is_looked_for_every_second(processes: Processes) -> None:
    clock = Clock(0.0)
    searches = []

    def descendants() -> list[psutil.Process]:
        searches.append(clock.now)
        return processes.list()

    cluster = Cluster(descendants, clock)
    for quarter in range(9):
        clock.now = quarter / 4
        if quarter == 2:
            processes.start(RAYLET)
        cluster.look()
    processes.kill(RAYLET)

    assert searches == [0.0, 1.0, 2.0]
    assert len(cluster.look()) == 1


def ended_child() -> int:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid


def test_orphans_are_reaped_but_not_the_server() -> None:
    adopted, server = ended_child(), ended_child()

    reap_orphans(server)

    assert not os.path.exists(f"/proc/{adopted}")
    assert os.waitpid(server, 0) == (server, 0)


STOPS = """
import subprocess, sys
from serve_app.cli.ray_processes import stop_descendants
start = lambda code: subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
children = list(map(start, sys.argv[1:]))
print(*(child.pid for child in children), flush=True)
input()
stopped = stop_descendants(0.2, killed_within_s=0.5)
print(len(stopped.killed), *stopped.killed, *stopped.left, sep="\\n", flush=True)
import os; os._exit(0)  # no end of this process may wait for its children
"""
SLEEP = "import time; time.sleep(600)"
FIRST_THREAD_ENDS = (
    "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(600,)).start(); "
    "ctypes.CDLL(None).pthread_exit(None)"
)


@contextmanager
def stopper(*codes: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A process with a child for each code, which stops its descendants after a line of input."""
    command = [sys.executable, "-c", STOPS, *codes]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, [int(pid) for pid in process.stdout.readline().split()]


@needs_freezer
def test_a_descendant_in_uninterruptible_sleep_is_named_and_left() -> None:
    with stopper(SLEEP, SLEEP) as (process, (stuck, _)):
        with uninterruptible(stuck):
            said = process.communicate("\n", timeout=60)[0].splitlines()
        assert len(said) == 3
        assert said[0] == "1"
        assert said[1].startswith(f"process {stuck} (")
        assert SLEEP in said[1]
        assert said[2].startswith(f"process {stuck} (python")
        assert "in state D, uninterruptible sleep" in said[2]


@needs_freezer
def test_a_process_whose_other_thread_is_stuck_has_not_ended() -> None:
    """So it is where a worker thread waits for a GPU: the process itself looks like a zombie."""
    with stopper(FIRST_THREAD_ENDS) as (process, (stuck,)):
        while psutil.Process(stuck).status() != psutil.STATUS_ZOMBIE:
            pass
        with uninterruptible(stuck):
            said = process.communicate("\n", timeout=60)[0].splitlines()
        assert said[0] == "1"
        assert said[2].startswith(f"process {stuck} (python")


def test_descendants_that_end_are_not_named() -> None:
    with stopper(SLEEP, "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP) as (
        process,
        _,
    ):
        said = process.communicate("\n", timeout=60)[0].splitlines()
        assert len(said) == 1 + int(said[0])
