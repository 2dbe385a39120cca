"""One HTML page for results: a single file that asks nobody for anything, and works where it lies.

The page is a template, a style sheet and plain scripts (`page/`), put together here with the data as JSON.
Its content security policy forbids every request, so that what it shows can only be what is in it.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from serve_app.replay.report import formats, palette
from serve_app.replay.report.comparison import GOAL, ORACLE, cheapest_peer, standings, verdict
from serve_app.replay.report.document import document, finite
from serve_app.replay.report.thinning import thinned
from serve_app.replay.result import Result

_SCRIPTS = (
    "elements.js",
    "format.js",
    "scales.js",
    "headline.js",
    "panels.js",
    "marks.js",
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
_SLOT = re.compile(r"\{\{(\w+)\}\}")


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
    filled = {
        "title": html.escape(f"{formats.plain(result.policy)} on {formats.plain(result.trace)}"),
        "verdict": html.escape(verdict(result, rows)).replace(" %", "&nbsp;%"),
        "light": palette.css(palette.LIGHT),
        "dark": palette.css(palette.DARK),
        "style": _asset("page.css"),
        "script": "\n".join(_asset(name) for name in _SCRIPTS),
        "data": embedded(data),
    }
    # In one pass, so that braces in a policy's name are never taken for a slot.
    return _SLOT.sub(lambda slot: filled[slot[1]], _asset("page.html"))


def embedded(data: Any) -> str:
    """JSON that can stand in a `<script>` element: nothing in it can end the element or open a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _for_page(result: Result) -> dict[str, Any]:
    known = document(thinned(result))
    known["decisions"] = [
        {key: record[key] for key in _RECORD_KEYS if key in record} for record in known["decisions"]
    ]
    return known


def _asset(name: str) -> str:
    return resources.files("serve_app.replay.report.page").joinpath(name).read_text(encoding="utf-8")
