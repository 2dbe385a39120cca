"""What a replica starts has less weight while it starts, and as much as others once it is ready."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from serve_app.engine import niceness
from serve_app.engine.niceness import STARTING

SCRIPT = """
import os, subprocess, sys, threading
from serve_app.engine.niceness import lower_priority

waiting = threading.Event()
before = threading.Thread(target=waiting.wait)
before.start()
def weights(process):
    return {os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in os.listdir(f"/proc/{process}/task")}
with lower_priority():
    core = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    print(weights(os.getpid()), weights(core.pid))
print(weights(os.getpid()), weights(core.pid))
waiting.set()
core.communicate(b"\\n")
"""


@pytest.mark.skipif(not niceness.may_undo(), reason="needs root, or an RLIMIT_NICE of 20")
def test_all_threads_have_low_priority_until_ready() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        capture_output=True,
        text=True,
        check=True,
        process_group=0,
        timeout=60,
    )
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    slower = {min(mine + STARTING, 19)}
    assert ran.stdout.splitlines() == [f"{slower} {slower}", f"{ {mine} } { {mine} }"]


def test_what_could_not_be_undone_is_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(niceness, "may_undo", lambda: False)
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with niceness.lower_priority():
        assert os.getpriority(os.PRIO_PROCESS, 0) == before


@pytest.mark.parametrize(
    ("limit", "effective", "may"),
    [(20, "0000000000000000", True), (0, "0000000000800000", True), (0, "00000000a80425fb", False)],
)
def test_root_or_a_limit_allows_it(
    limit: int, effective: str, may: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"Name:\tx\nCapEff:\t{effective}\n")
    assert niceness.may_undo() is may
