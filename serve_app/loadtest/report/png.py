"""A load test as pictures for a README: its timeline, and its latencies.

Matplotlib takes half a second to import, so it is imported where a picture is drawn.
"""

from __future__ import annotations

from pathlib import Path

from serve_app.loadtest.record import Run
from serve_app.loadtest.summary import Summary
from serve_app.loadtest.verdicts import Verdicts

TIMELINE, LATENCY = "timeline", "latency"
DPI = 150
TIMELINE_INCHES = (12.0, 8.4)
LATENCY_INCHES = (12.0, 4.6)


def write_png(
    folder_or_path: str | Path, run: Run, summary: Summary, verdicts: Verdicts
) -> tuple[Path, Path]:
    """Write both pictures, and return where: the timeline, and the distributions of TTFT and ITL.

    In a folder, which is made if need be, they are `timeline.png` and `latency.png`; a path that ends in
    `.png` gets both words before its ending: `burst.png` gives `burst-timeline.png`.

    Raises:
        OSError: if a file cannot be written.
        ValueError: `run.scenario` is not a scenario.
    """
    from matplotlib import rc_context  # noqa: PLC0415

    from serve_app.loadtest.report.png_latency import latency_figure  # noqa: PLC0415
    from serve_app.loadtest.report.png_timeline import timeline_figure  # noqa: PLC0415

    place = Path(folder_or_path)
    prefix = ""
    if place.suffix.lower() == ".png":
        place, prefix = place.parent, f"{place.stem}-"
    place.mkdir(parents=True, exist_ok=True)
    paths = (place / f"{prefix}{TIMELINE}.png", place / f"{prefix}{LATENCY}.png")
    # A model's name may have dollars in it; they are no formula.
    with rc_context({"text.parse_math": False, "font.size": 9.5, "hatch.linewidth": 1.2}):
        figures = (
            timeline_figure(run, summary, verdicts, TIMELINE_INCHES, DPI),
            latency_figure(run, LATENCY_INCHES, DPI),
        )
        for figure, path in zip(figures, paths, strict=True):
            figure.savefig(path, format="png", metadata={"Software": "Tideserve"})
    return paths
