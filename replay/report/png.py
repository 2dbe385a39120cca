"""The timeline and the cost-versus-attainment picture as PNG files.

Matplotlib takes half a second to import, so it is imported where a picture is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from replay.report.comparison import standings
from replay.result import Result

TIMELINE, FRONTIER = "timeline", "cost-versus-attainment"
DPI = 150
TIMELINE_INCHES = (12.0, 8.4)
FRONTIER_INCHES = (10.0, 6.0)


def write_png(folder_or_path: str | Path, results: Sequence[Result], main: int = 0) -> tuple[Path, Path]:
    """Write both pictures, and return where: the timeline of `results[main]`, and all policies as points.

    In a folder, which is made if need be, they are `timeline.png` and `cost-versus-attainment.png`; a path
    that ends in `.png` gets both words before its ending: `r1.png` gives `r1-timeline.png`.

    Raises:
        ValueError: without results, or if `main` is not one of them.
        OSError: if a file cannot be written.
    """
    from loadtests.drawing.pictures import write_pictures  # noqa: PLC0415
    from replay.report.png_frontier import frontier_figure  # noqa: PLC0415
    from replay.report.png_timeline import timeline_figure  # noqa: PLC0415

    rows = standings(results, main)
    first, last = write_pictures(
        folder_or_path,
        {
            TIMELINE: lambda: timeline_figure(results[main], TIMELINE_INCHES, DPI),
            FRONTIER: lambda: frontier_figure(rows, results[main], FRONTIER_INCHES, DPI),
        },
    )
    return first, last
