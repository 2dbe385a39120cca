"""The autoscaler's container: its first process is a shell of ours, because Ray's monitor ignores SIGTERM."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kubernetes.chart import LAPTOP, ray_service

_NAMESPACE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child")
"""Runs a command as the first process of a PID namespace, as a container's is."""

needs_namespaces = pytest.mark.skipif(
    subprocess.run([*_NAMESPACE, "true"], check=False, capture_output=True).returncode != 0,
    reason="no PID namespaces for ordinary users here",
)


@contextmanager
def _container(*command: str, monitor: str) -> Iterator[subprocess.Popen[str]]:
    """`command` as a container's first process, with `monitor` as the program that the operator starts."""
    environment = {**os.environ, "KUBERAY_GEN_AUTOSCALER_START_CMD": monitor}
    with subprocess.Popen(
        [*_NAMESPACE, *command], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def _ours() -> list[str]:
    options = ray_service(LAPTOP)["spec"]["rayClusterConfig"]["autoscalerOptions"]
    return [*options["command"], *options["args"]]


def _first_process(unshare: int) -> int:
    """What runs as number 1 in the namespace that `unshare` has made."""
    [child] = Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()
    return int(child)


@needs_namespaces
def test_it_ends_by_sigterm_and_the_monitor_with_it(tmp_path: Path) -> None:
    monitor = tmp_path / "monitor"
    monitor.write_text(f"#!/bin/bash\ntrap 'echo ended > {tmp_path}/told; exit' TERM\necho up\nread\n")
    monitor.chmod(0o755)
    with _container(*_ours(), monitor=str(monitor)) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "up\n"
        os.kill(_first_process(running.pid), signal.SIGTERM)
        running.wait(20)


@needs_namespaces
def test_without_the_shell_sigterm_would_be_ignored() -> None:
    """The kernel drops signals to a namespace's first process that has no handler for them."""
    command = ["/bin/bash", "-c", "--", "exec python3 -c 'print(1, flush=True); import time; time.sleep(60)'"]
    with _container(*command, monitor="") as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "1\n"
        first = _first_process(running.pid)
        os.kill(first, signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            running.wait(0.5)
        os.kill(first, signal.SIGKILL)
        running.wait(20)


@needs_namespaces
def test_a_monitor_that_ends_is_started_anew(tmp_path: Path) -> None:
    """Pods of Ray's autoscaler v2 have restartPolicy Never: nobody else would."""
    script = [part.replace("sleep 5", "sleep 0.01") for part in _ours()]
    monitor = tmp_path / "monitor"
    monitor.write_text("#!/bin/bash\necho up\nexit 3\n")
    monitor.chmod(0o755)
    with _container(*script, monitor=str(monitor)) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert [running.stdout.readline() for _ in range(3)] == ["up\n"] * 3
        assert "the autoscaler has ended with 3" in running.stderr.readline()
        os.kill(_first_process(running.pid), signal.SIGTERM)
        running.wait(20)
