import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from loadtests.drawing.palette import LIGHT
from replay.report import write_png
from replay.report.png_frontier import FRONTIER_INCHES
from replay.report.png_timeline import TIMELINE_INCHES
from tests.loadtests.drawing.pictures import share_of, size_of
from tests.replay.report import samples

SIZES = [TIMELINE_INCHES, FRONTIER_INCHES]


def test_both_pictures_have_their_size_and_show_something(tmp_path: Path) -> None:
    paths = write_png(tmp_path / "pictures", samples.realistic(hours=1))

    assert [path.name for path in paths] == ["timeline.png", "cost-versus-attainment.png"]
    assert [size_of(path) for path in paths] == SIZES
    assert share_of(paths[0], LIGHT["ok"]) > 0.005
    assert share_of(paths[1], LIGHT["accent"]) > 0.0001
    assert share_of(paths[1], LIGHT["held"]) > 0.0001


def test_a_path_of_a_picture_gives_two_beside_it_and_names_are_no_formulas(tmp_path: Path) -> None:
    paths = write_png(tmp_path / "r1.png", [replace(samples.empty(), policy="$x^2$ <&> \\frac", trace="$$")])

    assert [path.name for path in paths] == ["r1-timeline.png", "r1-cost-versus-attainment.png"]
    assert [size_of(path) for path in paths] == SIZES


def test_a_picture_needs_a_result(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="results, which are 0"):
        write_png(tmp_path, [])


def test_reports_are_imported_without_matplotlib() -> None:
    code = "import sys, replay.report; sys.exit('matplotlib' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
