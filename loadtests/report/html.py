"""The HTML page of a load test: a single file that loads nothing, and opens without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from loadtests.drawing.pages import assembled, write_page
from loadtests.record import Run
from loadtests.report.page_data import page_data
from loadtests.report.story import story
from loadtests.summary import Summary
from loadtests.verdicts import Verdicts

Theme = Literal["light", "dark"]


def write_html(
    path: str | Path, run: Run, summary: Summary, verdicts: Verdicts, theme: Theme | None = None
) -> Path:
    """Write the page to `path`; return the path. See `page`.

    Raises:
        OSError: if the file cannot be written.
        ValueError: `run.scenario` is not a scenario.
    """
    return write_page(path, page(run, summary, verdicts, theme))


def page(run: Run, summary: Summary, verdicts: Verdicts, theme: Theme | None = None) -> str:
    """Return the page as text. Without a `theme` it is light or dark as the reader's system is.

    Raises:
        ValueError: `run.scenario` is not a scenario.
    """
    return assembled(
        "loadtests.report.page",
        "load test",
        page_data(run, summary, verdicts),
        title=str(run.scenario.get("name", "")),
        story=story(run, summary),
        facts=str(run.scenario.get("about", "")),
        theme=theme,
    )
