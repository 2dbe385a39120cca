from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import REPOSITORY
from benchmarks.law_cells.cells import BASE, CELLS
from benchmarks.law_cells.law import Law
from benchmarks.law_cells.plan import CellJob, plan
from loadtests.traces import ArrayTrace
from replay.defaults import ORACLE, OURS
from tests.benchmarks.law_cells.build import CALM

LAW = Law(OURS, REPOSITORY, "0123")
BY_NAME = {cell.name: cell for cell in CELLS}
TRACE = ArrayTrace("one", [0.0], [100], [10])


def test_a_cell_without_traffic_of_its_own_is_on_every_window_and_another_on_its_own_alone() -> None:
    jobs = plan([BASE, BY_NAME["step"]], [CALM, replace(CALM, name="other")], [LAW], ["ray"], cut_s=600.0)

    assert [job.label for job in jobs] == [
        "base calm ours", "base calm ray", "base other ours", "base other ray",
        "step step ours", "step step ray",
    ]  # fmt: skip
    assert jobs[-1].traffic.cut_s == 600.0


def test_peers_and_the_oracle_are_run_once_for_cells_that_differ_in_reports_alone() -> None:
    cells = [BASE, BY_NAME["late"], BY_NAME["mute-minute"], BY_NAME["mute"]]

    assert len({CellJob(cell, CALM, ORACLE).key for cell in cells}) == 1
    assert len({CellJob(cell, CALM, OURS, LAW).key for cell in cells}) == 4


def test_a_key_changes_with_the_fleet_the_traffic_and_the_law_and_not_with_names() -> None:
    job = CellJob(BASE, CALM, OURS, LAW)

    assert job.key == CellJob(replace(BASE, name="x", title="y"), CALM, OURS, replace(LAW, name="before")).key
    others = [
        *(CellJob(BY_NAME[name], CALM, OURS, LAW) for name in ("cold-3", "fast", "slow", "roofline", "late")),
        CellJob(BASE, replace(CALM, seed=1), OURS, LAW),
        CellJob(BASE, replace(CALM, cut_s=60.0), OURS, LAW),
        CellJob(BASE, CALM, OURS, replace(LAW, digest="4567")),
        CellJob(BASE, CALM, "ray"),
    ]
    assert len({job.key, *(other.key for other in others)}) == 1 + len(others)


def test_a_law_is_known_by_its_sources(tmp_path: Path) -> None:
    for folder in ("policy", "controller", "settings"):
        (tmp_path / "serve_app" / folder).mkdir(parents=True)
    for file in ("policy/decide.py", "settings/knobs.py", "settings/tree.py"):
        (tmp_path / "serve_app" / file).write_text("a = 1\n")
    first = Law.of("before", tmp_path)
    (tmp_path / "serve_app/settings/tree.py").write_text("a = 2\n")
    assert Law.of("before", tmp_path) == first
    (tmp_path / "serve_app/policy/decide.py").write_text("a = 2\n")
    assert Law.of("before", tmp_path).digest != first.digest


def test_a_folder_without_a_law_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no serve_app/policy"):
        Law.of("before", tmp_path)


def test_a_cell_changes_its_own_circumstances_and_no_others() -> None:
    base = BASE.scenario(TRACE, 0)
    slow = BY_NAME["slow"].scenario(TRACE, 0)
    roofline = BY_NAME["roofline"].scenario(TRACE, 0)
    fast_starts = BY_NAME["cold-3"].scenario(TRACE, 0)

    assert slow.profile.step_base_s == pytest.approx(1.3 * base.profile.step_base_s)
    assert slow.profile.step_per_prefill_token_s == pytest.approx(1.3 * base.profile.step_per_prefill_token_s)
    assert slow.conditions == base.conditions
    assert roofline.profile == base.profile
    assert roofline.conditions == replace(base.conditions, step_model="roofline")
    assert fast_starts.conditions == replace(base.conditions, cold_start_s=(2.4, 3.6))
