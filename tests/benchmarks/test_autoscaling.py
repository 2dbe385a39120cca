import io
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.autoscaling import __main__ as command
from benchmarks.autoscaling.options import parse
from benchmarks.autoscaling.plan import BASE, GRID, VARIANTS, Job, plan
from benchmarks.autoscaling.pool import Progress
from benchmarks.autoscaling.store import Run, Store
from benchmarks.autoscaling.windows import find_windows
from benchmarks.peers.laws import PUBLISHED
from replay.defaults import ORACLE, OURS, STATIC
from tests.benchmarks.made_up_runs import failing, run, window


def folder_of_windows(tmp_path: Path) -> Path:
    folder = tmp_path / "windows"
    folder.mkdir()
    for name, every in (("calm", lambda at: 3), ("bursts", lambda at: 20 if at < 60 else 1)):
        rows = [f"{at},100,10" for at in range(600) for _ in range(every(at))]
        (folder / f"{name}.csv").write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows]) + "\n")
    return folder


def test_windows_are_told_apart_by_the_ratio_of_their_busiest_minute_to_their_mean(tmp_path: Path) -> None:
    bursts, calm = find_windows([folder_of_windows(tmp_path)])

    assert (calm.name, calm.smooth, calm.requests) == ("calm", True, 1800)
    assert calm.peak_to_mean == pytest.approx(1.0, rel=0.02)
    assert (bursts.name, bursts.smooth) == ("bursts", False)
    assert bursts.peak_to_mean > 5


def test_a_cut_window_has_only_its_beginning(tmp_path: Path) -> None:
    _, calm = find_windows([folder_of_windows(tmp_path)], cut_s=120.0)

    assert calm.requests == 360
    assert sum(len(chunk) for chunk in calm.open().chunks()) == 360


def test_a_place_without_windows_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such folder or file"):
        find_windows([tmp_path / "none"])
    with pytest.raises(ValueError, match="no file in it"):
        find_windows([tmp_path])


def test_the_plan_has_every_policy_on_every_seed_and_the_costly_ones_on_the_first() -> None:
    jobs = plan([window()], (0, 1, 2))

    for policy in (OURS, STATIC, *PUBLISHED):
        usual = [job.seed for job in jobs if job.policy == policy and job.variant == BASE]
        assert sorted(usual) == [0, 1, 2], policy
    for policy in (ORACLE, *GRID):
        assert [job.seed for job in jobs if job.policy == policy and job.variant == BASE] == [0], policy
    strained = {job.variant.name for job in jobs if job.policy == OURS and job.variant != BASE}
    assert strained == {variant.name for variant in VARIANTS}
    assert len({job.key for job in jobs}) == len(jobs)
    assert [job.effort for job in jobs] == sorted((job.effort for job in jobs), reverse=True)


def test_the_plan_can_be_narrowed_to_policies_and_parts() -> None:
    jobs = plan([window()], (0,), ["ours", "kpa:6"], ["results"])

    assert {(job.policy, job.variant.name) for job in jobs} == {("ours", ""), ("kpa:6", "")}


def test_a_key_changes_with_every_input_and_with_nothing_else() -> None:
    job = Job(window(), OURS, 0)

    assert job.key == Job(replace(window("renamed"), path=Path("elsewhere.csv")), OURS, 0).key
    others = [
        Job(window(), OURS, 1),
        Job(window(), "ray", 0),
        Job(window(), OURS, 0, VARIANTS[0]),
        Job(replace(window(), cut_s=60.0), OURS, 0),
        Job(replace(window(), digest="4567"), OURS, 0),
    ]
    assert len({job.key, *(other.key for other in others)}) == 1 + len(others)


def test_finished_runs_are_found_again_and_a_line_cut_off_is_not_one(tmp_path: Path) -> None:
    store = Store(tmp_path / "runs.jsonl", Run)
    job = Job(window(), OURS, 0)
    assert store.load() == {}
    store.add(job.key, run(job))
    with (tmp_path / "runs.jsonl").open("a") as file:
        file.write('{"key": "x", "ru')

    assert store.load() == {job.key: run(job)}
    store.add("other", run(job))
    assert set(store.load()) == {job.key, "other"}


def test_a_line_that_is_no_run_is_told_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_text("nonsense\n")

    with pytest.raises(ValueError, match=r"runs\.jsonl:1: not a run"):
        Store(tmp_path / "runs.jsonl", Run).load()


def test_runs_of_another_version_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_text('{"key": "x", "run": {"gpu_seconds": 1}}\n')
    store = Store(tmp_path / "runs.jsonl", Run)

    assert store.load() == {}
    assert store.other_versions == 1


def test_the_time_left_follows_the_pace_so_far() -> None:
    now = [0.0]
    jobs = [Job(window(), "ray", seed) for seed in range(4)]
    out = io.StringIO()
    progress = Progress(jobs, 0, 2, out, lambda: now[0])
    assert progress.left_s() == pytest.approx(2 * jobs[0].effort)

    now[0] = 30.0
    progress.finished(jobs[0], run(jobs[0]))

    assert progress.left_s() == pytest.approx(90.0)
    assert "[1/4] calm ray seed 0: 3,000 GPU-s, 99.5 %, took 1.0 s; 2 min left" in out.getvalue()


def test_a_part_of_the_benchmark_does_not_overwrite_the_page(tmp_path: Path) -> None:
    assert parse([]).page.name == "autoscaling.md"
    part = parse(["--policies", "ours,dynamo:itl=0.02+ttft=0.2", "--out", str(tmp_path)])
    assert part.page == tmp_path / "autoscaling-part.md"
    assert part.policies == ("ours", "dynamo:itl=0.02,ttft=0.2")
    assert parse(["--cut", "600", "--page", "here.md"]).page == Path("here.md")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--seeds", "a"], "--seeds = 'a'"),
        (["--jobs", "0"], "--jobs = 0"),
        (["--cut", "5"], "--cut = 5"),
        (["--parts", "all"], "--parts = 'all'"),
        (["--policies", "magic"], "no such baseline"),
    ],
)
def test_a_wrong_command_line_is_refused(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(arguments)

    assert caught.value.code == 2
    assert told in capsys.readouterr().err


def test_one_command_writes_page_picture_and_verdict_and_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def counted(job: Job) -> Run:
        ran.append(job.label)
        return run(job)

    monkeypatch.setattr(command, "execute", counted)
    windows = folder_of_windows(tmp_path)
    arguments = ["--windows", str(windows), "--jobs", "1", "--out", str(tmp_path / "out")]
    arguments += ["--page", str(tmp_path / "page.md"), "--picture", str(tmp_path / "images" / "p.png")]

    assert command.main(arguments) == 0

    text = (tmp_path / "page.md").read_text()
    assert "![" in text
    assert "(images/p.png)" in text
    assert "All targets are met." in text
    assert (tmp_path / "images" / "p.png").read_bytes()[:4] == b"\x89PNG"
    document = json.loads((tmp_path / "out" / "autoscaling.json").read_text())
    assert document["verdict"]["met"] is True
    assert document["failures"] == {}
    assert len(document["runs"]) == len(ran)
    assert len(document["runs"][0]) == len(document["columns"])

    first = len(ran)
    assert command.main(arguments) == 0
    assert len(ran) == first
    assert command.main([*arguments, "--fresh", "ray"]) == 0
    assert {label.split()[1] for label in ran[first:]} == {"ray"}
    assert "finished already" in capsys.readouterr().err


def test_an_interrupted_benchmark_keeps_what_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[Job] = []

    def interrupted(job: Job) -> Run:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(job)
        return run(job)

    monkeypatch.setattr(command, "execute", interrupted)
    arguments = ["--windows", str(folder_of_windows(tmp_path)), "--jobs", "1", "--out", str(tmp_path)]
    arguments += ["--page", str(tmp_path / "p.md"), "--picture", str(tmp_path / "p.png")]

    assert command.main(arguments) == 130
    assert len(Store(tmp_path / "autoscaling-runs.jsonl", Run).load()) == 3
    assert not (tmp_path / "p.md").exists()
    assert "interrupted" in capsys.readouterr().err


def test_a_replay_that_failed_is_told_on_the_page_and_by_the_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "execute", failing)
    arguments = ["--windows", str(folder_of_windows(tmp_path)), "--only", "calm", "--policies", "ours,wva"]
    arguments += ["--jobs", "1", "--seeds", "0", "--out", str(tmp_path)]

    assert command.main(arguments) == 1

    text = (tmp_path / "autoscaling-part.md").read_text()
    assert "**Failed:** calm wva seed 0: RuntimeError: no luck" in text


def test_an_unknown_window_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--windows", str(folder_of_windows(tmp_path)), "--only", "none"]) == 2
    assert "no such window; there are bursts, calm" in capsys.readouterr().err


def test_a_dry_run_lists_and_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--windows", str(folder_of_windows(tmp_path)), "--only", "calm", "--policies", "ours"]

    assert command.main([*arguments, "--dry-run", "--out", str(tmp_path)]) == 0

    printed = capsys.readouterr()
    assert "calm ours seed 2" in printed.out
    assert "replays to run; about" in printed.err
    assert os.listdir(tmp_path) == ["windows"]
