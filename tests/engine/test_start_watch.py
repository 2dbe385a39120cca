"""Starts that show progress go on, and starts without progress end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from serve_app.engine.start_watch import STILL_S, StartWatch, last_bar, transferred_bytes, watched
from serve_app.engine.startup import Startup

CORE = 42
"""The process of an engine core."""


class Start:
    """A start whose clock, processes and log are the test's."""

    def __init__(self, log: Path) -> None:
        self.documents: list[dict[str, Any]] = []
        self.startup = Startup(
            "tide", lambda document: self.documents.append(json.loads(document)), log=str(log)
        )
        self.log = log
        self.bytes = {CORE: 1 << 30}
        self.now = 0.0
        self.ended = False
        self.watch = StartWatch(self.startup, lambda: self.bytes, self._end)

    def _end(self) -> bool:
        self.ended = True
        return True

    def pass_time(self, seconds: float) -> bool:
        self.now += seconds
        return self.watch.look(self.now)


@pytest.fixture
def start(tmp_path: Path) -> Start:
    return Start(tmp_path / "worker.err")


def test_start_with_progress_has_no_deadline(start: Start) -> None:
    with start.startup.phase("weights_and_kv_cache"):
        for step in range(50):  # eight hours
            start.bytes[CORE] += 1 << 20
            assert start.pass_time(STILL_S - 1)
            with start.log.open("a") as log:
                log.write(f"\rCapturing CUDA graphs (decode, FULL): {step:3}%|###  | {step}/100")
            assert start.pass_time(STILL_S - 1)
            start.bytes[CORE + 1 + step] = 2 << 20  # a compiler of its own
            assert start.pass_time(STILL_S - 1)

    assert not start.ended


@pytest.mark.parametrize("waits", [False, True])
def test_start_without_progress_ends_with_the_name_of_its_phase(start: Start, waits: bool) -> None:
    def hang() -> None:
        with start.startup.phase("weights_and_kv_cache"):
            assert start.pass_time(1)
            for _ in range(int(STILL_S) - 1):
                start.bytes[CORE] += 200 * waits  # a core that hangs goes on logging that it waits
                assert start.pass_time(1)
            assert not start.pass_time(1)
            raise RuntimeError("Engine core initialization failed")  # vLLM, once its core is gone

    with pytest.raises(RuntimeError, match="initialization failed"):
        hang()

    assert start.ended
    last = start.documents[-1]
    assert (last["phase"], last["during"]) == ("failed", "weights_and_kv_cache")
    assert last["reason"].startswith(
        "nothing was read, compiled or captured for 600 s; RuntimeError: Engine core"
    )


def test_a_new_phase_is_progress(start: Start) -> None:
    for name in ("imports", "configuration", "weights_and_kv_cache"):
        with start.startup.phase(name):
            assert start.pass_time(STILL_S - 1)
    assert not start.ended


def test_progress_is_published_within_its_phase(start: Start) -> None:
    start.log.write_text("Loading safetensors checkpoint shards:  25% Completed | 1/4 [00:10<00:31]")
    with start.startup.phase("weights_and_kv_cache"):
        start.pass_time(1)
    start.pass_time(1)  # between two phases nothing is published

    begun, noted = start.documents
    assert noted == {**begun, "detail": "Loading safetensors checkpoint shards: 25 %"}


@pytest.mark.parametrize(
    ("text", "bar"),
    [
        ("", ""),
        ("no bar: 45 % of | all", ""),
        ("Loading checkpoint shards:   0% Completed | 0/4", "Loading checkpoint shards: 0 %"),
        (
            "(EngineCore pid=7) Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  45%|####  | 30/67",
            "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): 45 %",
        ),
        ("Loading: 10%|#|\rLoading: 20%|##|", "Loading: 20 %"),
        ("x" * 100_000 + "\nLoading: 20%|##|", "Loading: 20 %"),
    ],
)  # fmt: skip
def test_last_bar_of_a_log(tmp_path: Path, text: str, bar: str) -> None:
    log = tmp_path / "worker.err"
    log.write_text(text, newline="")
    assert last_bar(log) == bar
    assert last_bar(tmp_path / "none") == ""


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
    assert any(count >= 5 << 20 for process, count in found.items() if process != parent.pid)


def test_a_short_start_is_not_looked_at(tmp_path: Path) -> None:
    documents: list[str] = []
    with watched(Startup("tide", documents.append, log=str(tmp_path / "worker.err"))):
        pass
    assert documents == []
