"""What is printed, and that the JSON of a run gives the same rows again."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.chaos.observed import Memory
from benchmarks.chaos.results import document, goals, notes, read_results, table
from benchmarks.chaos.verdicts import Row, rows
from tests.benchmarks.test_chaos_verdicts import trace

ROW: Row = rows(trace())[0]
LOST = replace(ROW, role="gcs", goals={"answers": False, "ready": False}, back_s=None, note="ended after 3 s")


def test_a_row_says_pass_or_which_goals_it_missed() -> None:
    lines = table([ROW, LOST]).splitlines()
    assert lines[2].startswith("| engine-core ")
    assert lines[2].endswith("| PASS                 |")
    assert "| no " in lines[3]
    assert lines[3].endswith("| MISS: answers, ready |")
    assert notes([ROW, LOST]) == ["gcs: ended after 3 s"]


def test_the_goals_name_what_missed_them() -> None:
    text = goals([ROW, replace(LOST, signal="stop")])
    assert "MISS in 1 of 2: gcs (SIGSTOP)" in text
    assert text.count("PASS") == 3


def test_a_result_is_read_back_as_it_was(tmp_path: Path) -> None:
    seen = trace(memory=[Memory(at, {"gcs": 50}, {"gcs": 1}) for at in range(20)])
    path = tmp_path / "chaos.json"
    path.write_text(json.dumps(document(seen, {"command": []})))
    found, memory = read_results(path)
    assert found == rows(seen)
    assert [one.role for one in memory] == ["gcs"]


def test_processes_are_written_only_where_they_changed() -> None:
    assert len(document(trace(), {})["processes"]) == 1


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 9, "rows": [], "memory": []}'])
def test_a_file_that_is_no_result_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"other\.json: no result of a chaos run"):
        read_results(path)
