import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from loadtests.drawing.palette import LIGHT
from loadtests.report import write_png
from loadtests.report.png_latency import LATENCY_INCHES
from loadtests.report.png_timeline import TIMELINE_INCHES
from tests.loadtests import samples
from tests.loadtests.drawing.pictures import share_of, size_of
from tests.loadtests.report.runs import reported, two_models

SIZES = [TIMELINE_INCHES, LATENCY_INCHES]


def test_both_pictures_have_their_size_and_show_something(tmp_path: Path) -> None:
    paths = write_png(tmp_path / "pictures", *reported(samples.cold_burst()))

    assert [path.name for path in paths] == ["timeline.png", "latency.png"]
    assert [size_of(path) for path in paths] == SIZES
    assert share_of(paths[0], LIGHT["target"]) > 0.001
    assert share_of(paths[0], LIGHT["ttft"]) > 0.0005
    assert share_of(paths[1], LIGHT["itl"]) > 0.0005
    assert share_of(paths[1], LIGHT["held"]) > 0.0003


def test_two_models_fit_and_names_are_no_formulas(tmp_path: Path) -> None:
    run = two_models()
    dollars = replace(run, samples=tuple(replace(one, model=f"$x^2$ {one.model}") for one in run.samples))
    paths = write_png(tmp_path / "run.png", *reported(dollars))

    assert [path.name for path in paths] == ["run-timeline.png", "run-latency.png"]
    assert [size_of(path) for path in paths] == SIZES


def test_a_run_without_anything_has_pictures_too(tmp_path: Path) -> None:
    nothing = replace(samples.empty(), records=(), samples=(), decisions=(), duration_s=0.0)

    assert [size_of(path) for path in write_png(tmp_path, *reported(nothing))] == SIZES


def test_reports_are_imported_without_matplotlib() -> None:
    code = "import sys, loadtests.report; sys.exit('matplotlib' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
