"""Starts that show progress go on, and starts without progress end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from serve_app.engine.start_watch import STILL_S, last_bar, transferred_bytes, watch
from serve_app.engine.startup import Startup

CORE = 42
"""The process of an engine core."""
LONG_S = 36_000.0


class Start:
    """A start whose clock, processes and log are the test's. `at_each_look` says what has happened."""

    def __init__(self, log: Path, at_each_look: Callable[[Start], None]) -> None:
        self.startup = Startup("tide", lambda _: None, log=str(log))
        self.startup.current = "weights_and_kv_cache"
        self.log = log
        self.bytes = {CORE: 1 << 30}
        self.now = 0.0
        self._at_each_look = at_each_look

    def stands_still(self) -> bool:
        def waited(seconds: float) -> bool:
            self.now += seconds
            self._at_each_look(self)
            return self.now >= LONG_S

        return watch(self.startup, lambda: self.bytes, waited, clock=lambda: self.now)


def seldom(happens: Callable[[Start], None]) -> Callable[[Start], None]:
    """Let it happen a little more often than a start may stand still."""
    return lambda start: happens(start) if not start.now % (STILL_S - 4) else None


def transfer(start: Start) -> None:
    start.bytes[CORE] += 16 << 20


def compile_files(start: Start) -> None:
    start.bytes[CORE + int(start.now)] = 20 << 20  # a process of its own each time


def capture(start: Start) -> None:
    with start.log.open("a") as log:
        log.write(f"\rCapturing CUDA graphs (decode, FULL): {start.now / LONG_S:.0%}|###  | {start.now}")


def enter_phase(start: Start) -> None:
    start.startup.current = f"phase {start.now}"


def drip(start: Start) -> None:
    start.bytes[CORE] += 20_000  # 10 kB/s


def log_that_it_waits(start: Start) -> None:
    start.bytes[CORE] += 200
    start.log.write_text(f"No available shared memory broadcast block found in {start.now} seconds.")


@pytest.mark.parametrize("progress", [transfer, compile_files, capture, enter_phase])
def test_start_with_progress_has_no_deadline(tmp_path: Path, progress: Callable[[Start], None]) -> None:
    start = Start(tmp_path / "worker.err", seldom(progress))

    assert not start.stands_still()
    assert start.now == LONG_S


@pytest.mark.parametrize(
    "happens", [lambda _: None, drip, log_that_it_waits], ids=["silent", "dripping", "waiting"]
)
def test_start_without_progress_stands_still(tmp_path: Path, happens: Callable[[Start], None]) -> None:
    start = Start(tmp_path / "worker.err", happens)

    assert start.stands_still()
    assert STILL_S <= start.now <= STILL_S + 4


_HANGS = """
import json, os, subprocess, sys
from serve_app.engine import start_watch
from serve_app.engine.startup import Startup
start_watch._LOOK_S = 0.1
os.setpgid(0, 0)
core = subprocess.Popen(["sleep", "1000"]) if sys.argv[1] == "core" else None
startup = Startup("tide", print)
with start_watch.watched(startup, 0.1), startup.phase("weights_and_kv_cache"):
    if core is None:
        subprocess.os.read(os.pipe()[0], 1)  # this process hangs itself
    core.wait()
    raise RuntimeError(f"engine core ended with {core.returncode}")
"""


@pytest.mark.parametrize(
    ("hangs", "reason"), [("core", "RuntimeError: engine core ended with -9"), ("replica", "ended")]
)
def test_start_that_hangs_ends_with_the_name_of_its_phase(hangs: str, reason: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _HANGS, hangs], capture_output=True, text=True, timeout=120, check=False
    )

    assert ended.returncode == 1
    last: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    assert (last["phase"], last["during"]) == ("failed", "weights_and_kv_cache")
    assert last["reason"] == f"nothing was read, compiled or captured for 0.1 s; {reason}"


@pytest.mark.parametrize(
    ("text", "bar"),
    [
        ("", b""),
        ("no bar: 45 % of all", b""),
        ("(EngineCore pid=7) Loading shards:  25% Completed | 1/4", b"25% Completed | 1/4"),
        ("Capturing CUDA graphs (decode, FULL):  45%|####  | 30/67", b"45%|####  | 30/67"),
        ("Loading: 10%|#|\rLoading: 20%|##|", b"20%|##|"),
        ("x" * 100_000 + "\nLoading: 20%|##|", b"20%|##|"),
    ],
)
def test_last_bar_of_a_log(tmp_path: Path, text: str, bar: bytes) -> None:
    log = tmp_path / "worker.err"
    log.write_text(text, newline="")
    assert last_bar(log) == bar
    assert last_bar(tmp_path / "none") == b""


def test_bytes_of_other_processes_of_the_replica_count(tmp_path: Path) -> None:
    write = (
        f"open({str(tmp_path / 'file')!r}, 'wb').write(bytes(5 << 20)); print('done', flush=True); input()"
    )
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {write!r}], process_group=0)"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"done\n"
        found = transferred_bytes()
        parent.communicate(b"\n")

    assert parent.pid in found
    assert os.getpid() not in found
    assert any(count >= 5 << 20 for process, count in found.items() if process != parent.pid)
