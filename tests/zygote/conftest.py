"""A real zygote that imports next to nothing, and Python processes that are forked from it."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from serve_app.env import ZYGOTE_SOCKET

MARK = "colorsys"
"""A module that nothing else imports: where it is loaded, the process was forked from the zygote."""
Start = Callable[..., "subprocess.Popen[str]"]


def wait_for(path: Path) -> None:
    """Wait until a zygote listens. Its socket refuses connections from its creation until then."""
    while True:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(str(path))
            except (FileNotFoundError, ConnectionRefusedError):
                time.sleep(0.01)
            else:
                return


@contextmanager
def zygote_at(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "serve_app.zygote.zygote", str(path), str(os.getpid()), MARK]
    with subprocess.Popen(command) as process:
        wait_for(path)
        yield process
        process.kill()


@pytest.fixture
def zygote(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A zygote of the test's own."""
    with zygote_at(tmp_path / "zygote") as process:
        yield process


@pytest.fixture(scope="module")
def _zygote_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("shared") / "zygote"
    with zygote_at(path):
        yield path


@pytest.fixture
def shared_zygote(_zygote_of_module: Path, tmp_path: Path) -> None:
    """A zygote that forks for all tests of a module."""
    (tmp_path / "zygote").symlink_to(_zygote_of_module)


@pytest.fixture
def python(tmp_path: Path) -> Iterator[Start]:
    """Start `tideserve-python` with a command line, as a client of the zygote in this folder."""
    started: list[subprocess.Popen[str]] = []

    def start(
        *arguments: str, socket: str = str(tmp_path / "zygote"), **options: object
    ) -> subprocess.Popen[str]:
        environment = {**os.environ, ZYGOTE_SOCKET: socket, "GIVEN": "to the fork"}
        command = [sys.executable, "-m", "serve_app.zygote.python", *arguments]
        process = subprocess.Popen(  # type: ignore[call-overload]
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
        )
        started.append(process)
        return process  # type: ignore[no-any-return]

    yield start
    for process in started:
        process.kill()
        process.communicate()
