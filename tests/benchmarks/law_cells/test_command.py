import json
from pathlib import Path

import pytest

from benchmarks import REPOSITORY
from benchmarks.law_cells import __main__ as command
from benchmarks.law_cells import options
from benchmarks.law_cells.figures import CellRun
from benchmarks.law_cells.plan import PEERS, CellJob
from replay.defaults import ORACLE, OURS, STATIC
from tests.benchmarks.law_cells.build import run

FIGURES = {OURS: (1200.0, 0.995), ORACLE: (1000.0, 1.0), STATIC: (2000.0, 1.0)}


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    labels: list[str] = []

    def counted(job: CellJob) -> CellRun:
        labels.append(job.label)
        return run(*FIGURES.get(job.policy, (3000.0, 1.0)), name=job.column)

    monkeypatch.setattr(command, "execute", counted)
    return labels


def arguments(tmp_path: Path, *more: str) -> list[str]:
    windows = tmp_path / "windows"
    windows.mkdir(exist_ok=True)
    rows = [f"{at},100,10" for at in range(300)]
    (windows / "calm.csv").write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows]) + "\n")
    return ["--traces", str(windows), "--jobs", "1", "--out", str(tmp_path / "out"), *more]


def test_a_part_is_written_beside_the_results_and_goes_on_where_it_was(
    tmp_path: Path, ran: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments(tmp_path, "--cells", "base,late,constant")

    assert command.main(given) == 0

    # The cell of late reports has our policy to run and nothing else: 3 x ours, 2 x the others.
    assert len(ran) == 3 + 2 * (len(PEERS) + 2)
    printed = capsys.readouterr().out
    assert "1.20 @ 99.5 %" in printed
    assert "met  Smooth traffic: at least 99% attainment" in printed
    page = (tmp_path / "out" / "law-cells-part.md").read_text()
    assert "| late" in page
    document = json.loads((tmp_path / "out" / "law-cells-part.json").read_text())
    assert [row["cell"] for row in document["rows"]] == ["base", "late", "constant"]
    assert document["rows"][1]["runs"][ORACLE]["gpu_seconds"] == 1000.0
    assert not (tmp_path / "out" / "law-cells.json").exists()

    first = len(ran)
    assert command.main(given) == 0
    assert len(ran) == first
    assert command.main([*given, "--fresh", "ray"]) == 0
    assert sorted(ran[first:]) == ["base calm ray", "constant constant ray"]


def test_the_whole_replaces_the_page(tmp_path: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "PAGE", tmp_path / "page.md")

    assert command.main(arguments(tmp_path)) == 0

    assert (tmp_path / "page.md").read_text().startswith("# Cells in which the law could be wrong")
    assert (tmp_path / "out" / "law-cells.json").exists()
    assert "growing-prompts growing-prompts ours" in ran


def test_a_replay_that_failed_and_a_demand_that_is_missed_make_the_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(job: CellJob) -> CellRun:
        if job.policy == "ray":
            raise RuntimeError("no luck")
        return run(1500.0 if job.policy == OURS else 1000.0, 1.0)

    monkeypatch.setattr(command, "execute", failing)

    assert command.main(arguments(tmp_path, "--cells", "base")) == 1

    assert "MISSED  Smooth traffic: on average at most 1.25" in capsys.readouterr().out
    page = (tmp_path / "out" / "law-cells-part.md").read_text()
    assert "**Failed:** base calm ray: RuntimeError: no luck" in page


def test_another_checkouts_law_is_a_column(
    tmp_path: Path, ran: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    given = arguments(tmp_path, "--cells", "constant", "--law", f"before={REPOSITORY}")

    assert command.main(given) == 0

    # Of the same sources it is the same run.
    assert len(ran) == 1 + len(PEERS) + 2
    printed = capsys.readouterr().out
    assert "`before`" in printed
    assert "`before` is cheaper and attains more in no cell: 0 of 1" in printed


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (["--cells", "warp"], "--cells = 'warp': must be of base, cold-3"),
        (["--policies", "magic"], "--policies = 'magic': must be of ours, ray"),
        (["--law", "before"], "--law = 'before': must be NAME=CHECKOUT"),
        (["--law", "ray=/"], "another column has that name"),
        (["--law", "before=/proc"], "/proc has no serve_app/policy"),
        (["--jobs", "0"], "--jobs = 0"),
        (["--cut", "5"], "--cut = 5"),
    ],
)
def test_a_wrong_command_line_is_refused(
    wrong: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(wrong)

    assert caught.value.code == 2
    assert told in capsys.readouterr().err


def test_an_unknown_window_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(arguments(tmp_path, "--windows", "none-such")) == 2
    assert "no such window; there are calm" in capsys.readouterr().err
