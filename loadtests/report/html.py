"""One HTML page for a load test: a single file that asks nobody for anything, and works where it lies."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Literal

from loadtests.drawing.pages import assembled
from loadtests.record import Run
from loadtests.report.page_data import page_data
from loadtests.report.story import story
from loadtests.summary import Summary
from loadtests.verdicts import Verdicts
from serve_app.cli.formats import plain

Theme = Literal["light", "dark"]
_LONGEST = 400
_UNIT = re.compile(r"(?<=\d) (?=(?:ms|s|min|h)\b|%)")
_STYLES = ("base.css", "page.css")
_SCRIPTS = (
    "elements.js",
    "format.js",
    "clock.js",
    "scales.js",
    "axes.js",
    "blocks.js",
    "floating.js",
    "records.js",
    "store.js",
    "theme.js",
    "latency.js",
    "headline.js",
    "panels.js",
    "marks.js",
    "view.js",
    "timeline.js",
    "overview.js",
    "decisions.js",
    "requests.js",
    "distribution.js",
    "holds.js",
    "costs.js",
    "tables.js",
    "main.js",
)
"""In the order in which they need each other."""


def write_html(
    path: str | Path, run: Run, summary: Summary, verdicts: Verdicts, theme: Theme | None = None
) -> Path:
    """Write the page to `path`; returns the path. See `page`.

    Raises:
        OSError: if the file cannot be written.
        ValueError: `run.scenario` is not a scenario.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page(run, summary, verdicts, theme), encoding="utf-8")
    return target


def page(run: Run, summary: Summary, verdicts: Verdicts, theme: Theme | None = None) -> str:
    """The page as text. Without a `theme` it is light or dark as the reader's system is.

    Raises:
        ValueError: `run.scenario` is not a scenario.
    """
    texts = {
        "theme": f' data-theme="{theme}"' if theme else "",
        "title": _text(str(run.scenario.get("name", ""))),
        "about": _text(str(run.scenario.get("about", ""))),
        "story": _text(story(run, summary)),
    }
    data = page_data(run, summary, verdicts)
    return assembled("loadtests.report.page", _STYLES, _SCRIPTS, data, texts)


def _text(text: str) -> str:
    """As HTML, with units kept beside their numbers."""
    return html.escape(_UNIT.sub("\u00a0", plain(text, _LONGEST)))
