"""A load test as pictures for a README: its timeline, and its latencies."""

from pathlib import Path

from loadtests.record import Run
from loadtests.summary import Summary
from loadtests.verdicts import Verdicts


def write_png(folder_or_path: str | Path, run: Run, summary: Summary, verdicts: Verdicts) -> tuple[Path, ...]:
    """Write the timeline and the distributions of TTFT and ITL; return their paths.

    In a folder, which is made if need be, they are `timeline.png` and `latency.png`; a path that ends in
    `.png` gets both words before its ending: `burst.png` gives `burst-timeline.png`.

    Raises:
        OSError: if a file cannot be written.
        ValueError: `run.scenario` is not a scenario.
    """
    # Matplotlib takes half a second to import.
    from loadtests.drawing.pictures import write_pictures  # noqa: PLC0415
    from loadtests.report.png_latency import latency_figure  # noqa: PLC0415
    from loadtests.report.png_timeline import timeline_figure  # noqa: PLC0415

    figures = {
        "timeline": lambda: timeline_figure(run, summary, verdicts),
        "latency": lambda: latency_figure(run),
    }
    return write_pictures(folder_or_path, figures)
