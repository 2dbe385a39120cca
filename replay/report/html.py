"""One HTML page for results: what it shows, as data, and the parts (`page/`) that draw it."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadtests.drawing.pages import assembled, finite
from replay.defaults import GOAL, ORACLE
from replay.report.comparison import cheapest_peer, standings, verdict
from replay.report.document import document
from replay.report.thinning import thinned
from replay.result import Result
from serve_app.cli import formats

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
    "headline.js",
    "panels.js",
    "marks.js",
    "view.js",
    "timeline.js",
    "overview.js",
    "cards.js",
    "decisions.js",
    "costs.js",
    "frontier.js",
    "tables.js",
    "main.js",
)
"""In the order in which they need each other."""
_RECORD_KEYS = (
    "at",
    "kind",
    "mode",
    "old_target",
    "new_target",
    "wanted",
    "ready",
    "binding",
    "reason",
    "counterfactual",
    "terms",
    "clamps",
    "notes",
)
"""What the page shows of a decision; its signals and ages, two thirds of it, are in `--json`."""


def write_html(path: str | Path, results: Sequence[Result], main: int = 0) -> Path:
    """Write the page to `path`, with `results[main]` in its headline; returns the path.

    Raises:
        ValueError: without results, or if `main` is not one of them.
        OSError: if the file cannot be written.
    """
    target = Path(path)
    target.write_text(page(results, main), encoding="utf-8")
    return target


def page(results: Sequence[Result], main: int = 0) -> str:
    """The page as text."""
    rows = standings(results, main)
    result = results[main]
    peer = cheapest_peer(rows)
    data = {
        "main": main,
        "goal": GOAL,
        "oracle": ORACLE,
        "cheapest": peer.policy if peer is not None else None,
        "rows": finite([asdict(row) for row in rows]),
        "results": [_for_page(entry) for entry in results],
    }
    texts = {
        "title": html.escape(f"{formats.plain(result.policy)} on {formats.plain(result.trace)}"),
        "verdict": html.escape(verdict(result, rows)).replace(" %", "&nbsp;%"),
    }
    return assembled("replay.report.page", _STYLES, _SCRIPTS, data, texts)


def _for_page(result: Result) -> dict[str, Any]:
    known = document(thinned(result))
    known["decisions"] = [
        {key: record[key] for key in _RECORD_KEYS if key in record} for record in known["decisions"]
    ]
    return known
