import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.autoscaling_overhead import __main__ as command
from benchmarks.autoscaling_overhead.__main__ import Report, missed, to_markdown, write
from benchmarks.autoscaling_overhead.controller_state import ENGINE, Fleet
from benchmarks.autoscaling_overhead.timings import PARTS, Timing, measure, share_of_a_core
from serve_app.settings.knobs import Knobs


def timings(replicas: int, median_s: float) -> list[Timing]:
    return [Timing(part, replicas, 9, median_s, 2 * median_s, median_s / 2) for part in PARTS]


def report(median_s: float = 0.0005) -> Report:
    return Report({"cores": "2"}, {"ray": "1.2.3"}, [*timings(1, median_s), *timings(100, median_s)])


def test_every_part_is_timed_at_the_size_asked_for() -> None:
    found = measure(3, rounds=2, warm_up=1)

    assert [timing.part for timing in found] == list(PARTS)
    assert {(timing.replicas, timing.rounds) for timing in found} == {(3, 2)}
    assert all(0 < timing.lowest_s <= timing.median_s <= timing.p95_s for timing in found)


def test_the_policy_that_is_timed_has_decided_on_the_reports_of_all_replicas() -> None:
    fleet = Fleet(4, Knobs(max_replicas=8))
    for _ in range(2):
        fleet.report()
        fleet.call()

    record = fleet.policy._journal.records()[-1]
    assert record["kind"] != "error"
    assert record["ready"] == 4
    assert record["signals"]["running_requests"] >= 8
    assert len(record["ages_s"]) == 4 + 1
    assert fleet.context(ENGINE).current_num_replicas == 4


def test_the_share_of_a_core_counts_two_decisions_and_ten_turns_a_second() -> None:
    found = [replace(timing, median_s=0.001) for timing in timings(1, 0.001)]

    assert share_of_a_core(found) == {"ours": pytest.approx(0.01), "peer": pytest.approx(0.01)}


def test_a_goal_that_is_missed_is_said() -> None:
    assert missed(report()) == []
    assert missed(report(0.002)) == ["decide at 100 replicas: 2.00 ms, the goal is 1 ms"]
    assert "All goals met." in to_markdown(report())
    assert "**Goal missed:** decide at 100 replicas" in to_markdown(report(0.002))


def test_the_results_are_written_for_people_and_for_programs(tmp_path: Path) -> None:
    write(report(), tmp_path / "results")

    text = (tmp_path / "results" / "results.md").read_text()
    assert "## 1 replica\n" in text
    assert "## 100 replicas\n" in text
    assert "cores 2" in text
    assert "ray 1.2.3" in text
    document = json.loads((tmp_path / "results" / "results.json").read_text())
    assert len(document["timings"]) == 2 * len(PARTS)
    assert set(document["share_of_a_core"]) == {"1", "100"}


@pytest.mark.parametrize("arguments", [["--replicas", "few"], ["--replicas", "0"], ["--rounds", "0"]])
def test_a_wrong_command_line_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(arguments)

    assert caught.value.code == 2
    assert "must be" in capsys.readouterr().err or arguments[1] == "few"
