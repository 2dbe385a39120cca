"""The processes watched are real, with the command lines of Ray's."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from serve_app.cli.ray_processes import Cluster, reap_orphans

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


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_cluster_that_lives_is_nothing_to_tell(processes: Processes) -> None:
    processes.start(GCS, RAYLET, AGENT, RUNTIME_ENV, REPLICA)
    cluster = Cluster(processes.list)

    assert cluster.look() == []
    assert cluster.look() == []
    assert not cluster.lost


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (GCS, f"Ray's GCS (process {{}}) ended; its log: {LOGS}/gcs_server.out"),
        (RAYLET, f"the raylet (process {{}}) ended; its log: {LOGS}/raylet.out"),
    ],
)
@pytest.mark.parametrize("reap", [True, False])
def test_without_gcs_or_raylet_it_is_lost_and_the_log_is_named(
    processes: Processes, line: tuple[str, ...], told: str, reap: bool
) -> None:
    processes.start(GCS, RAYLET)
    cluster = Cluster(processes.list)
    cluster.look()

    pid = processes.kill(line, reap=reap)

    assert cluster.look() == [told.format(pid)]
    assert cluster.lost
    assert cluster.look() == []


@pytest.mark.parametrize("line", [AGENT, RUNTIME_ENV])
def test_an_agent_is_told_before_the_raylet_that_ends_with_it(
    processes: Processes, line: tuple[str, ...]
) -> None:
    processes.start(GCS, RAYLET, AGENT, RUNTIME_ENV)
    cluster = Cluster(processes.list)
    cluster.look()

    processes.kill(line)
    [first] = cluster.look()
    assert "the raylet ends with it; its log: " in first
    assert not cluster.lost

    processes.kill(RAYLET)
    [second] = cluster.look()
    assert second.startswith("the raylet (")
    assert cluster.lost


def test_ends_seen_at_once_are_told_cause_first(processes: Processes) -> None:
    processes.start(RAYLET, AGENT)
    cluster = Cluster(processes.list)
    cluster.look()

    processes.kill(RAYLET)
    processes.kill(AGENT)

    assert [line.split(" (")[0] for line in cluster.look()] == ["Ray's dashboard agent", "the raylet"]


def test_requests_are_served_without_the_dashboard(processes: Processes) -> None:
    processes.start(GCS, DASHBOARD)
    cluster = Cluster(processes.list)
    cluster.look()

    processes.kill(DASHBOARD)

    [line] = cluster.look()
    assert "requests are served" in line
    assert line.endswith(f"{LOGS}/dashboard.log")
    assert not cluster.lost


def test_what_starts_later_is_looked_for_every_second(processes: Processes) -> None:
    clock = Clock()
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


def test_a_replica_is_ray_s_to_replace(processes: Processes) -> None:
    processes.start(GCS, REPLICA)
    cluster = Cluster(processes.list)
    cluster.look()

    processes.kill(REPLICA)

    assert cluster.look() == []


def ended_child() -> int:
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid


def test_processes_that_have_ended_are_taken_leave_of_and_the_server_is_left_to_who_waits_for_it() -> None:
    adopted, server = ended_child(), ended_child()

    reap_orphans(server)

    assert not os.path.exists(f"/proc/{adopted}")
    assert os.waitpid(server, 0) == (server, 0)
