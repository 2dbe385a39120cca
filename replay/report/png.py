"""Replays as pictures: the timeline of one, and the cost of all against their attainment."""

from collections.abc import Sequence
from pathlib import Path

from replay.report.comparison import standings
from replay.result import Result


def write_png(folder_or_path: str | Path, results: Sequence[Result], main: int = 0) -> tuple[Path, ...]:
    """Write the timeline of `results[main]`, and all policies as points; return the paths of both pictures.

    In a folder, which is made if need be, they are `timeline.png` and `cost-versus-attainment.png`; a path
    that ends in `.png` gets both words before its ending: `r1.png` gives `r1-timeline.png`.

    Raises:
        ValueError: without results, or if `main` is not one of them.
        OSError: if a file cannot be written.
    """
    # Matplotlib takes half a second to import.
    from loadtests.drawing.pictures import write_pictures  # noqa: PLC0415
    from replay.report.png_frontier import frontier_figure  # noqa: PLC0415
    from replay.report.png_timeline import timeline_figure  # noqa: PLC0415

    rows = standings(results, main)
    figures = {
        "timeline": lambda: timeline_figure(results[main]),
        "cost-versus-attainment": lambda: frontier_figure(rows, results[main]),
    }
    return write_pictures(folder_or_path, figures)
