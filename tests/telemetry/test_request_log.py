"""The request log: what is written, and what happens when it cannot be."""

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from serve_app.telemetry.request_log import MOST_WAITING_BYTES, LogSegments, RequestLog
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
