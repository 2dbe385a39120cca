"""Replays with the law of this checkout and of others, in processes of their own."""

import shutil
from pathlib import Path

import pytest

from benchmarks import REPOSITORY
from benchmarks.law_cells.cells import BASE
from benchmarks.law_cells.execute import execute
from benchmarks.law_cells.law import Law
from benchmarks.law_cells.plan import CellJob
from replay.defaults import OURS
from tests.benchmarks.law_cells.build import CALM

HERE = Law.of(OURS, REPOSITORY)


def checkout(folder: Path) -> Path:
    """Another checkout: its policy is a copy, and all else of `serve_app` is this one's."""
    (folder / "serve_app").mkdir()
    for path in (REPOSITORY / "serve_app").iterdir():
        if path.name not in ("policy", "__pycache__"):
            (folder / "serve_app" / path.name).symlink_to(path, target_is_directory=path.is_dir())
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "serve_app/policy", folder / "serve_app/policy", ignore=ignored)
    return folder


def test_the_law_of_another_checkout_decides_there(tmp_path: Path) -> None:
    there = checkout(tmp_path)
    decide = there / "serve_app/policy/decide.py"
    decide.write_text(
        decide.read_text() + "\n\n_decide = decide\n\ndef decide(inputs):\n"
        "    import dataclasses\n"
        "    return dataclasses.replace(_decide(inputs), target=5)\n"
    )

    ours = execute(CellJob(BASE, CALM, OURS, HERE))
    five = execute(CellJob(BASE, CALM, OURS, Law.of("five", there)))

    assert five.starts >= 3
    assert five.gpu_seconds > 2 * ours.gpu_seconds


def test_what_the_other_law_lacks_is_named(tmp_path: Path) -> None:
    there = checkout(tmp_path)
    decide = there / "serve_app/policy/decide.py"
    decide.write_text(decide.read_text().replace("def decide(", "def settle("))

    with pytest.raises(RuntimeError, match=f"law of {there} does not fit .*cannot import name 'decide'"):
        execute(CellJob(BASE, CALM, OURS, Law.of("drifted", there)))


def test_a_law_whose_decisions_raise_is_told_and_not_judged_by_the_target_that_was_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def raising(*_: object) -> None:
        raise ArithmeticError("as told")

    monkeypatch.setattr("serve_app.controller.serve_policy.next_decision", raising)

    with pytest.raises(RuntimeError, match=r"decisions raised: .*as told"):
        execute(CellJob(BASE, CALM, OURS, HERE))


def test_a_peer_is_replayed_without_a_law() -> None:
    run = execute(CellJob(BASE, CALM, "ray"))

    assert (run.name, run.reversals) == ("ray", 0)
    assert run.gpu_seconds > 0
