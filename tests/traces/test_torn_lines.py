"""What a crash leaves of a log is replayed: its whole lines, and where the torn ones were is told."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.traces.files import PLAIN, json_lines, log_line, requests, written
from traces import TraceError, open_trace

START = 1_763_712_000.0
FIRST, SECOND = json_lines([log_line(START)]), json_lines([log_line(START + 5, request_id="é")])
TORN = json.dumps(
    log_line(START + 7, model="tidé", share=-1.5e-7, nested={"a": 1}), ensure_ascii=False
).encode()


def read(path: Any, **options: Any) -> tuple[list[float], list[str]]:
    trace = open_trace(path, **options)
    return requests(trace).arrivals, trace.left_out()


@pytest.mark.parametrize("bytes_kept", range(1, len(TORN)))
def test_a_torn_end_is_left_out_with_a_note(tmp_path: Path, bytes_kept: int) -> None:
    path = written(tmp_path, (FIRST + SECOND).encode() + TORN[:bytes_kept])

    assert read(path) == ([0.0, 5.0], [f"{path}: torn lines left out: 1 (line 3)"])


def test_complete_logs_give_no_note(tmp_path: Path) -> None:
    assert read(written(tmp_path, FIRST + SECOND.strip())) == ([0.0, 5.0], [])


@pytest.mark.parametrize("line_break", ["\n", ""], ids=["on a new line", "on the torn line"])
def test_a_restarted_process_goes_on_behind_a_torn_line(tmp_path: Path, line_break: str) -> None:
    path = written(tmp_path, FIRST + '{"arrived_at": 17' + line_break + SECOND + FIRST[:30])

    arrivals, told = read(path)

    last = 4 if line_break else 3
    assert arrivals == [0.0, 5.0]
    assert told == [f"{path}: torn lines left out: 2 (line 2, {last})"]


@pytest.mark.parametrize(
    "content", [FIRST + "{zeros}", FIRST + "{zeros}\n" + SECOND, FIRST + "{zeros}" + SECOND]
)
def test_zero_bytes_that_a_file_system_left_are_a_torn_line(tmp_path: Path, content: str) -> None:
    path = written(tmp_path, content.replace("{zeros}", "\0" * 4096))

    assert read(path)[1] == [f"{path}: torn lines left out: 1 (line 2)"]


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ('{"timestamp": 0}', 2),
        ("nonsense", 2),
        ('{"arrived_at": 1, "input_tokens": 10,\n"output_tokens": 1}', 2),
    ],
    ids=["whole and wrong", "no object", "on two lines"],
)
def test_a_line_that_no_crash_made_is_an_error(tmp_path: Path, line: str, number: int) -> None:
    path = written(tmp_path, FIRST + line + "\n" + SECOND)

    with pytest.raises(TraceError, match=f"{path}, line {number}: "):
        requests(open_trace(path))


def test_a_file_without_a_whole_line_is_refused_alone(tmp_path: Path) -> None:
    path = written(tmp_path, TORN[:40])

    with pytest.raises(TraceError, match=r"torn lines left out: 1 \(line 1\); no line is whole"):
        open_trace(path)


def test_each_log_of_a_fleet_may_have_a_torn_end(tmp_path: Path) -> None:
    zipped = gzip.compress(SECOND.encode() * 400) + gzip.compress(
        json_lines([log_line(START + 9)]).encode() * 400
    )
    written(tmp_path, FIRST + '{"arriv', "node-a.0001.jsonl")
    written(tmp_path, zipped[:-30], "node-a.0002.jsonl.gz")
    written(tmp_path, '{"arriv', "node-b.0001.jsonl")
    written(tmp_path, b"\x1f\x8b\x08", "node-b.0002.jsonl.gz")
    # A compression that was killed: the original is still there.
    written(tmp_path, FIRST, "node-c.0001.jsonl")
    written(tmp_path, gzip.compress(FIRST.encode())[:20], "node-c.0001.jsonl.gz")

    arrivals, told = read(tmp_path)

    assert arrivals[:2] == [0.0, 0.0]
    assert arrivals[2:402] == [5.0] * 400
    assert 0 < arrivals[402:].count(9.0) == len(arrivals) - 402 < 400
    whole = len(arrivals) - 2
    assert sorted(told) == [
        f"{tmp_path}/node-a.0001.jsonl: torn lines left out: 1 (line 2)",
        f"{tmp_path}/node-a.0002.jsonl.gz: is truncated after line {whole}; torn lines left out: 1 "
        f"(line {whole + 1})",
        f"{tmp_path}/node-b.0001.jsonl: torn lines left out: 1 (line 1)",
        f"{tmp_path}/node-b.0002.jsonl.gz: is truncated after line 0",
    ]


def test_a_truncated_gzip_file_is_read_to_its_last_line(tmp_path: Path) -> None:
    zipped = gzip.compress((PLAIN + "".join(f"{i},1,1\n" for i in range(1000))).encode())
    path = written(tmp_path, zipped[: len(zipped) // 2])

    arrivals, (told,) = read(path)

    assert arrivals == [float(i) for i in range(len(arrivals))]
    assert 100 < len(arrivals) < 1000
    assert told.startswith(f"{path}: is truncated after line {len(arrivals) + 1}")
