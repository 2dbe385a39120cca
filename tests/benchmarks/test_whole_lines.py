from pathlib import Path

from benchmarks.common.whole_lines import whole_lines


def test_a_torn_last_line_is_removed_before_another_is_added(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    assert whole_lines(path) == []

    path.write_bytes('{"a": 1}\n{"a": "é'.encode()[:-1])

    assert whole_lines(path) == ['{"a": 1}']
    assert path.read_bytes() == b'{"a": 1}\n'
