"""The stub server in a process of its own, so that its work is not on the clock of the client's loop."""

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.loadtests.client.driving import Stub


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stub]:
    log = tmp_path_factory.mktemp("stub") / "served.jsonl"
    command = [sys.executable, "-m", "tests.loadtests.stub_server", "--log", str(log)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        name, port = process.stdout.readline().split()
        assert name == "port"
        yield Stub(int(port), log, process.pid)
        process.terminate()


@pytest.fixture(autouse=True)
def garbage_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare each load its search for garbage: with vLLM imported by other tests, it takes over a second."""
    monkeypatch.setattr(gc, "collect", lambda: 0)
