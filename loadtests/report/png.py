"""A load test as pictures for a README: its timeline, and its latencies.

Matplotlib takes half a second to import, so it is imported where a picture is drawn.
"""

from __future__ import annotations

from pathlib import Path

from loadtests.record import Run
from loadtests.summary import Summary
from loadtests.verdicts import Verdicts

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
    from loadtests.drawing.pictures import write_pictures  # noqa: PLC0415
    from loadtests.report.png_latency import latency_figure  # noqa: PLC0415
    from loadtests.report.png_timeline import timeline_figure  # noqa: PLC0415

    first, last = write_pictures(
        folder_or_path,
        {
            TIMELINE: lambda: timeline_figure(run, summary, verdicts, TIMELINE_INCHES, DPI),
            LATENCY: lambda: latency_figure(run, LATENCY_INCHES, DPI),
        },
    )
    return first, last
