"""The rows of losses in a row, from made-up streams."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.chaos.continuity import Row, goals, goals_table, judge, percentile, references, table
from benchmarks.chaos.greedy import Heard
from benchmarks.chaos.losses_results import document, notes, read_rows
from benchmarks.chaos.observed import Event

EVENTS = [
    Event(10.0, "engine-replica", "kill", (1,)),
    Event(20.0, "engine-core", "stop", (2,)),
    Event(30.0, "engine-replica", "kill", (3,)),
]
USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}


def stream(begin_s: float, end_s: float, *moves: tuple[float, float], **more: object) -> Heard:
    whole = Heard("sea", begin_s, end_s, "whole", "", "Waves", ["length"], USAGE, [], 1, 1, list(moves))
    return replace(whole, **more)


HEARD = [
    stream(0.0, 5.0),
    stream(6.0, 15.0, (9.9, 10.3)),
    stream(8.0, 25.0, (10.0, 10.4), (20.1, 24.6)),
    stream(16.0, 26.0, (20.0, 24.0), text="Weaves"),
    stream(18.0, 29.0),
    stream(22.0, 31.0, outcome="told", error="replica_lost", text="Wa"),
    stream(32.0, 34.0),
]


def found() -> dict[str, Row]:
    return {row.kind: row for row in judge(EVENTS, HEARD)}


def test_each_kind_of_loss_has_what_befell_the_streams_nearest_to_it() -> None:
    killed, stopped = found()["engine-replica killed"], found()["engine-core stopped"]
    assert (killed.losses, killed.streams, killed.moved) == (2, 3, 2)
    assert killed.pauses_s == pytest.approx([0.4, 0.4])
    assert (killed.broken, killed.differing) == (1, 0)
    assert (stopped.losses, stopped.streams, stopped.moved) == (1, 3, 2)
    assert (stopped.broken, stopped.differing) == (0, 1)


def test_the_time_until_a_silent_engine_counts_as_lost_is_no_part_of_the_pause() -> None:
    assert found()["engine-core stopped"].pauses_s == pytest.approx([1.0, 0.5])


def test_every_stream_counts_once_in_the_last_row() -> None:
    total = judge(EVENTS, HEARD)[-1]
    assert (total.kind, total.losses, total.streams, total.moved) == ("all", 3, 7, 4)
    assert (total.broken, total.differing) == (1, 1)
    assert found()["no loss"].streams == 2


def test_the_reference_is_from_before_the_first_loss() -> None:
    assert references(EVENTS, HEARD[::-1]) == {"sea": HEARD[0]}


def test_goals_are_missed_by_one_stream_that_breaks_or_differs_and_by_long_pauses() -> None:
    rows = judge(EVENTS, HEARD)
    assert list(goals(rows).values()) == [False, False, True, True]
    assert "MISS" in goals_table(rows)
    whole = judge(EVENTS, [HEARD[0], HEARD[1]])
    assert list(goals(whole).values()) == [True, True, True, True]
    slow = judge(EVENTS, [HEARD[0], stream(6.0, 19.0, (10.0, 16.0))])
    assert list(goals(slow).values()) == [True, True, False, False]


def test_the_table_has_a_line_for_each_kind() -> None:
    lines = table(judge(EVENTS, HEARD)).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == [
        "engine-replica killed", "engine-core stopped", "no loss", "all",
    ]  # fmt: skip
    assert "0.40 / 0.40 / 0.40" in lines[2]


def test_a_percentile_is_a_value_that_was_seen() -> None:
    assert (percentile([], 0.5), percentile([3.0, 1.0, 2.0], 0.5), percentile([1.0, 2.0], 0.99)) == (
        0.0,
        2.0,
        2.0,
    )


def test_streams_that_broke_or_differ_are_named_with_where() -> None:
    differs, broke = notes(EVENTS, HEARD)
    assert "differs in text after 1 of 5 characters: 'eaves' and not 'aves'" in differs
    assert broke == "sea, 12.0 to 21.0 s, 0 moves: told after 2 characters: replica_lost"


def test_a_result_gives_its_rows_again(tmp_path: Path) -> None:
    path = tmp_path / "losses.json"
    path.write_text(json.dumps(document(EVENTS, HEARD, {"command": []})))
    assert read_rows(path) == judge(EVENTS, HEARD)
    path.write_text("{}")
    with pytest.raises(ValueError, match="no result of losses in a row"):
        read_rows(path)
