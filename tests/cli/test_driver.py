import subprocess
import sys
from pathlib import Path

import pytest
from ray._private import parameter
from ray.serve._private.application_state import ApplicationStatusInfo, StatusOverview
from ray.serve._private.common import DeploymentStatus, DeploymentStatusInfo, DeploymentStatusTrigger
from ray.serve.schema import ApplicationStatus

from serve_app.cli.driver import failures, report_failures, say, take_any_agent_port
from serve_app.cli.server_log import ServerLog


def application(name: str, status: ApplicationStatus, message: str, **deployments: str) -> StatusOverview:
    failed = (DeploymentStatus.DEPLOY_FAILED, DeploymentStatusTrigger.REPLICA_STARTUP_FAILED)
    parts = [DeploymentStatusInfo(part, *failed, said) for part, said in deployments.items()]
    return StatusOverview(ApplicationStatusInfo(status, message), name, parts)


def test_failed_deployment_shows_its_last_lines() -> None:
    traceback = "\n".join(f"line {number}" for number in range(20))
    found = failures(
        [
            application("well", ApplicationStatus.RUNNING, ""),
            application("ill", ApplicationStatus.DEPLOY_FAILED, "Ingress is unhealthy.", Ingress=traceback),
            application("bad", ApplicationStatus.DEPLOY_FAILED, "No module named 'x'"),
        ]
    )

    assert list(found) == [
        ("ill", [f"line {number}" for number in range(8, 20)]),
        ("bad", ["No module named 'x'"]),
    ]


def test_each_failure_is_printed_once_until_it_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    ill, late = {"ill": ["No module named 'x'"]}, {"late": ["no room"]}
    reported: set[str] = set()
    lines = []
    for failed in (ill, ill, ill | late, late, ill | late):
        report_failures(failed, reported)
        lines.append(capsys.readouterr().err.count("could not be deployed"))

    assert lines == [1, 0, 1, 0, 1]


def test_message_is_read_after_half_a_line(monkeypatch, tmp_path: Path) -> None:
    log = ServerLog(tmp_path)
    with log.path.open("a", buffering=1) as file:
        monkeypatch.setattr(sys, "stderr", file)
        file.write("(ServeController pid=7) Serve enabled with the following configurations:")
        say("Ray has started", "  with its dashboard")
        file.write("\n")

    assert list(log.look()) == ["tideserve: Ray has started", "tideserve:   with its dashboard"]
    log.close()


def test_second_clusters_agent_takes_another_port(monkeypatch) -> None:
    assert parameter.RayParams().dashboard_agent_listen_port == 52365
    monkeypatch.setattr(parameter, "RayParams", parameter.RayParams)
    take_any_agent_port()

    started = parameter.RayParams(num_cpus=2)
    assert started.dashboard_agent_listen_port == 0
    assert started.num_cpus == 2


@pytest.mark.parametrize(
    ("failure", "told"),
    [("TimeoutError('no proxy')", "TimeoutError: no proxy"), ("SystemExit('no such file')", "")],
)
def test_a_failed_start_ends_the_driver_before_ray(failure: str, told: str) -> None:
    code = f"""
import atexit
from serve_app.cli import driver
def fail(): raise {failure}
driver.cli = fail
atexit.register(print, "Ray shuts down")
driver.main()
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60
    )

    assert ended.returncode == 1
    assert ended.stdout == ""
    assert told in ended.stderr
