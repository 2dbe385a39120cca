import json
from pathlib import Path

import pytest

from replay import report
from replay.outputs import Outputs, json_text
from replay.result import Result
from replay.run import replay
from serve_app.cli.command_error import CommandError
from serve_app.settings.settings_error import SettingsError
from tests.replay.traffic import steady


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return [replay(steady(duration_s=60.0), policy=policy) for policy in ("static:1", "static:2")]


def test_every_file_asked_for_is_written_and_nothing_else(tmp_path: Path, results: list[Result]) -> None:
    outputs = Outputs(str(tmp_path / "a.json"), tmp_path / "a.html", tmp_path / "pictures")
    outputs.check()

    written = outputs.write(results)

    assert {str(path.relative_to(tmp_path)) for path in written} == {
        "a.json",
        "a.html",
        "pictures/timeline.png",
        "pictures/cost-versus-attainment.png",
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "a.json", "pictures"]
    assert len(list((tmp_path / "pictures").iterdir())) == 2


def test_a_name_in_png_is_the_beginning_of_two(tmp_path: Path, results: list[Result]) -> None:
    written = Outputs(None, None, tmp_path / "r1.png").write(results)

    assert sorted(path.name for path in written) == ["r1-cost-versus-attainment.png", "r1-timeline.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in written)


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_none_is_written_if_one_cannot_be(
    tmp_path: Path, results: list[Result], monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    def fails(*_: object) -> Path:
        raise failure

    (tmp_path / "a.json").write_text("before")
    monkeypatch.setattr(report, "write_html", fails)

    with pytest.raises((CommandError, KeyboardInterrupt)):
        Outputs(str(tmp_path / "a.json"), tmp_path / "a.html", None).write(results)

    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    assert (tmp_path / "a.json").read_text() == "before"


def test_a_place_that_cannot_be_written_is_told_beforehand(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(SettingsError) as error:
        Outputs(str(tmp_path / "no" / "a.json"), tmp_path, tmp_path / "file").check()

    assert error.value.problems == [
        f"--json = {tmp_path}/no/a.json: {tmp_path}/no is not a folder",
        f"--html = {tmp_path}: a folder; must be a file",
        f"--png = {tmp_path}/file: a file; must be a folder, or a name that ends in .png",
    ]


def test_one_result_is_its_document_and_several_are_in_that_of_the_first(results: list[Result]) -> None:
    one, both = json.loads(json_text(results[:1])), json.loads(json_text(results))

    assert one["policy"] == both["policy"] == "static:1"
    assert "results" not in one
    assert [entry["policy"] for entry in both["results"]] == ["static:1", "static:2"]
