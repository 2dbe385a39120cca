import json
from pathlib import Path

from benchmarks.cold_start.asking import Answer, answered, logged


def line(arrived_at: float, ttft_s: float | None) -> str:
    return json.dumps({"arrived_at": arrived_at, "ttft_s": ttft_s}) + "\n"


def test_each_replica_counts_with_its_first_token() -> None:
    lines = [("a", line(10.0, 5.0)), ("a", line(10.0, 4.5)), ("a", line(10.0, None)), ("b", line(11.0, 7.0))]

    assert answered(lines) == {"a": Answer(10.0, 14.5), "b": Answer(11.0, 18.0)}


def test_lines_that_are_still_being_written_are_left_out(tmp_path: Path) -> None:
    first, second = line(1.0, 1.0), line(2.0, 1.0)
    (tmp_path / "requests.tideserve.Engine-m.abc.0001.jsonl").write_text(first + second[:9])
    (tmp_path / "requests.tideserve.Engine-m.def.0001.jsonl").write_text(second)

    assert logged(tmp_path) == [("abc", first), ("def", second)]


def test_without_a_log_nobody_has_answered(tmp_path: Path) -> None:
    assert answered(logged(tmp_path / "none")) == {}
