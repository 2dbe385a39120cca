"""The request log: what is written, and what happens when it cannot be."""

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from serve_app.settings.tree import RequestLogSettings
from serve_app.telemetry import request_log
from serve_app.telemetry.request_log import MOST_WAITING_BYTES, LogSegments, RequestLog, request_log_segments
from serve_app.wire.request_line import RequestLine
from traces import open_trace


class Disk(LogSegments):
    """Takes what is written, or fails."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.written: list[bytes] = []
        self.closed = False

    def append(self, data: bytes) -> None:
        if self.fails:
            raise OSError(28, "No space left on device")
        self.written.append(data)

    def close(self) -> None:
        self.closed = True


def line(arrived_at: float = 1_763_712_000.25, **more: Any) -> RequestLine:
    values = {
        "model": "tide",
        "operation": "chat_completions",
        "request_id": "r-1",
        "input_tokens": 812,
        "cached_tokens": 512,
        "output_tokens": 128,
        "sequences": 1,
        "ttft_s": 0.18,
        "e2e_s": 3.4,
        "held_s": 0.0,
        "status": 200,
        "outcome": "completed",
    }
    return RequestLine(arrived_at=arrived_at, **(values | more))


async def test_lines_are_written_together_and_each_ends() -> None:
    disk = Disk()
    log = RequestLog(disk)
    log.add(line())
    log.add(line(request_id="r-2"))
    assert disk.written == []

    await log.flush()
    await log.flush()

    (data,) = disk.written
    assert data.endswith(b"}\n")
    assert [msgspec.json.decode(row)["request_id"] for row in data.splitlines()] == ["r-1", "r-2"]


async def test_a_line_is_this_and_no_more() -> None:
    disk = Disk()
    log = RequestLog(disk)
    log.add(line(ttft_s=None, status=None, outcome="abandoned"))

    await log.close()

    assert disk.closed
    assert disk.written == [
        b'{"arrived_at":1763712000.25,"model":"tide","operation":"chat_completions","request_id":"r-1",'
        b'"input_tokens":812,"cached_tokens":512,"output_tokens":128,"sequences":1,"ttft_s":null,"e2e_s":3.4,'
        b'"held_s":0.0,"status":null,"outcome":"abandoned"}\n'
    ]


async def test_what_is_written_can_be_replayed(tmp_path: Path) -> None:
    log = RequestLog(LogSegments(tmp_path, ("requests", "app", "Engine-tide"), "r1", 1 << 20))
    log.add(line(1_763_712_030.5))
    log.add(line(1_763_712_000.0, output_tokens=7, outcome="abandoned", status=None))
    log.add(line(1_763_712_001.0, outcome="failed"))

    await log.close()

    (chunk,) = open_trace(tmp_path).chunks()
    assert chunk.arrival_s.tolist() == [0.0, 30.5]
    assert chunk.input_tokens.tolist() == [812, 812]
    assert chunk.output_tokens.tolist() == [7, 128]


async def test_lines_refused_by_the_disk_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    disk = Disk(fails=True)
    log = RequestLog(disk, clock=lambda: now[0])

    with caplog.at_level(logging.ERROR, "ray.serve"):
        for at in (0.0, 1.0, 59.0, 61.0):
            now[0] = at
            log.add(line())
            log.add(line())
            await log.flush()
    disk.fails = False
    log.add(line())
    await log.flush()

    assert [record.getMessage() for record in caplog.records] == [
        "request log: 2 lines lost: [Errno 28] No space left on device",
        "request log: 6 lines lost: [Errno 28] No space left on device",
    ]
    assert len(disk.written) == 1


async def test_lines_that_wait_for_a_slow_disk_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk()
    log = RequestLog(disk)
    long = line(request_id="x" * 100_000)

    with caplog.at_level(logging.ERROR, "ray.serve"):
        for _ in range(200):
            log.add(long)
    await log.flush()

    assert sum(len(data) for data in disk.written) <= MOST_WAITING_BYTES
    assert "lines lost: more than 16777216 bytes wait for the disk" in caplog.text


BLOCK = b"x" * 99 + b"\n"


def segments(folder: Path, writer: str = "r1", model: str = "Engine-a", most: int = 8_000) -> LogSegments:
    return LogSegments(folder, ("requests", "app", model), writer, most)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def aged(path: Path, seconds: int) -> None:
    os.utime(path, (seconds, seconds))


def test_a_full_file_is_followed_by_the_next(tmp_path: Path) -> None:
    log = segments(tmp_path)

    for _ in range(25):  # ten fit
        log.append(BLOCK)

    sizes = [path.stat().st_size for path in sorted(tmp_path.iterdir())]
    assert sizes == [1000, 1000, 500]


def test_all_files_of_a_family_stay_within_the_bound(tmp_path: Path) -> None:
    for replica in range(40):
        log = segments(tmp_path, f"r{replica}")
        for _ in range(13):
            log.append(BLOCK)
        log.close()
        for path in tmp_path.glob(f"*.r{replica}.*"):
            aged(path, replica)
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 8_000

    assert names(tmp_path)[0] != "requests.app.Engine-a.r0.0001.jsonl"
    assert "requests.app.Engine-a.r39.0002.jsonl" in names(tmp_path)


def test_other_families_and_other_files_are_left_alone(tmp_path: Path) -> None:
    others = ["requests.app.Engine-a-b.r1.0001.jsonl", "requests.other.Engine-a.r1.0001.jsonl", "serve.log"]
    for name in others:
        (tmp_path / name).write_bytes(b"x" * 100_000)
    log = segments(tmp_path)

    for _ in range(100):
        log.append(BLOCK)

    assert set(others) < set(names(tmp_path))


def test_file_removed_by_another_replica_is_not_written(tmp_path: Path) -> None:
    idle = segments(tmp_path, "idle")
    idle.append(BLOCK)
    (tmp_path / "requests.app.Engine-a.idle.0001.jsonl").unlink()

    idle.append(BLOCK)

    assert names(tmp_path) == ["requests.app.Engine-a.idle.0002.jsonl"]


def test_names_with_dots_and_slashes_make_no_other_family(tmp_path: Path) -> None:
    LogSegments(tmp_path, ("requests", "my/app.v2", "Engine-a"), "r.1", 8_000).append(BLOCK)

    assert names(tmp_path) == ["requests.my-app-v2.Engine-a.r-1.0001.jsonl"]


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = segments(tmp_path)
    log.append(BLOCK)
    written = []

    def half(file: int, data: memoryview) -> int:
        if written:
            raise OSError(28, "No space left on device")
        written.append(real(file, bytes(data[:50])))
        return 50

    real = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", half)
        with pytest.raises(OSError, match="No space"):
            log.append(BLOCK)
    log.append(BLOCK)

    assert (tmp_path / "requests.app.Engine-a.r1.0001.jsonl").read_bytes() == 2 * BLOCK


KILLED = """
import os, signal, sys
from pathlib import Path
from serve_app.telemetry.request_log import LogSegments

write = os.write
def half(file, data):
    write(file, bytes(data[: len(data) - 20]))
    os.kill(os.getpid(), signal.SIGKILL)
os.write = half
LogSegments(Path(sys.argv[1]), ("requests", "app", "Engine-a"), "r1", 8_000).append(sys.argv[2].encode() * 2)
"""


def test_log_goes_on_after_a_killed_writer(tmp_path: Path) -> None:
    line = '{"arrived_at": 1763712000.5, "input_tokens": 8, "output_tokens": 2}\n'
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), line], check=False)
    assert killed.returncode == -signal.SIGKILL

    segments(tmp_path).append(line.encode())

    trace = open_trace(tmp_path)
    (chunk,) = trace.chunks()
    assert len(chunk) == 2
    assert names(tmp_path) == ["requests.app.Engine-a.r1.0001.jsonl"]
    assert trace.left_out() == [f"{tmp_path}/{names(tmp_path)[0]}: torn lines left out: 1 (line 2)"]


def test_a_file_that_stays_torn_is_not_written_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> int:
        raise OSError(5, "Input/output error")

    log = segments(tmp_path)
    log.append(BLOCK)
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", refuse)
        patched.setattr(os, "ftruncate", refuse)
        with pytest.raises(OSError, match="Input/output"):
            log.append(BLOCK)
    log.append(BLOCK)

    assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == [BLOCK, BLOCK]


def test_the_settings_say_where_and_whether(tmp_path: Path) -> None:
    where = ("tideserve", "Engine-tide", "abc123")
    assert request_log_segments(RequestLogSettings(enabled=False), *where) is None

    log = request_log_segments(RequestLogSettings(directory=str(tmp_path)), *where)

    assert log is not None
    log.append(BLOCK)
    assert names(tmp_path) == ["requests.tideserve.Engine-tide.abc123.0001.jsonl"]


def test_by_default_it_is_beside_the_logs_of_ray_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = SimpleNamespace(get_temp_dir=lambda: str(tmp_path), get_session_name=lambda: "session_1")
    monkeypatch.setattr(request_log.ray, "get_runtime_context", lambda: context)

    log = request_log_segments(RequestLogSettings(), "tideserve", "Engine-tide", "abc123")

    assert log is not None
    log.append(BLOCK)
    assert len(names(tmp_path / "session_1/logs/serve")) == 1
