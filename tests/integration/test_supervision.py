"""`tideserve run` at Ctrl-C, and when Ray or Serve dies under it, where the model rests at zero."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.integration.cluster import START_TIMEOUT_S, Running, application, engine_settings
from tests.timing import wait_until

NAME = "at-zero"
WITHIN_S = 20.0
"""Beside other tests; 5 s on a machine of its own."""


@pytest.fixture
def restarting() -> Iterator[Running]:
    document = application(engine_settings(NAME), knobs={NAME: {"min_replicas": 0}})
    with Running(document, options=("--restart",)).serving() as made:
        yield made


def eventually(what: str, condition: Callable[[], bool], seconds: float) -> None:
    wait_until(condition, what=what, limit_s=seconds)


def test_ctrl_c_leaves_no_process_behind(app: Running) -> None:
    """Ends the application, as the last of its tests."""
    started = app.descendants()
    assert len(started) > 5
    assert app.stop() == 0
    _, alive = psutil.wait_procs(started, timeout=10)
    assert alive == []
    assert "0 processes had to be killed" in app.log


@pytest.mark.long
@pytest.mark.timeout(600)
def test_it_restarts_whatever_died_until_the_terminal_closes(restarting: Running) -> None:
    """The agent takes the raylet with it; then Serve is shut down from outside."""
    assert restarting.process is not None
    # What dies before `tideserve run` itself has seen it ready ends it, as a start that failed.
    eventually("it is ready by its own account", lambda: "ready after" in restarting.log, 30)
    first = restarting.descendants()

    restarting.processes("ray::DashboardAgent")[0].kill()

    eventually("it is told", lambda: "restarts in 1 s" in restarting.log, WITHIN_S)
    assert re.search(
        r"dashboard agent \(process \d+\) ended: the raylet ends with it; its log: \S+", restarting.log
    )
    assert re.search(r"the raylet \(process \d+\) ended; its log: \S+raylet.out", restarting.log)
    _, alive = psutil.wait_procs(first, timeout=10)
    assert alive == []
    eventually("ready again", lambda: restarting.log.count("ready after") == 2, START_TIMEOUT_S)

    shutdown = [sys.executable, "-m", "ray.serve.scripts", "shutdown", "-y"]
    shutdown += ["--address", restarting.dashboard]
    # Its exit status says nothing: all of Ray ends with the controller, often before the dashboard answers.
    subprocess.run(shutdown, check=False, capture_output=True)
    eventually("it is told", lambda: "controller is gone for good" in restarting.log, WITHIN_S)
    assert restarting.stop(signal.SIGHUP) == 0  # as when its terminal closes
