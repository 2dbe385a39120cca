"""HTML pages as single files that load nothing, and open without a network.

A page is a template, style sheets and plain scripts, put together with its data as JSON. The template's
content security policy forbids every request, so a page shows only its own data.
"""

import html
import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

from serve_app.cli import formats
from serve_app.ui import palette
from serve_app.ui.assets import SHARED, joined

_REPORTS = "loadtests.drawing.page"
"""The package of the template, and of the scripts and styles that reports have in common."""
_SLOT = re.compile(r"\{\{(\w+)\}\}")
_UNIT = re.compile(r"(?<=\d) (?=(?:ms|s|min|h)\b|%)")
_LONGEST_TEXT = 400


def assembled(
    package: str, kind: str, data: Any, *, title: str, story: str, facts: str, theme: str | None = None
) -> str:
    """Return a page as text.

    Args:
        package: Has the page's own scripts and styles. A script defines `PAGE`, which `page.js` explains.
        kind: The subject of the page, as in `Tideserve replay`.
        data: The data to draw, as plain data without NaN or infinities.
        title: Plain text for the head, as are `story` and `facts`.
        theme: `light` or `dark`; without one, the page follows the reader's system.
    """
    filled = {
        "theme": f' data-theme="{theme}"' if theme else "",
        "kind": kind,
        "title": _text(title),
        "story": _text(story),
        "facts": _text(facts),
        "colours": palette.rules(),
        "style": joined(".css", SHARED, _REPORTS, package),
        "script": joined(".js", SHARED, _REPORTS, package),
        "data": embedded(data),
    }
    # In one pass, so that braces in a text are never taken for a slot.
    template = resources.files(_REPORTS).joinpath("page.html").read_text(encoding="utf-8")
    return _SLOT.sub(lambda slot: filled[slot[1]], template)


def write_page(path: str | Path, text: str) -> Path:
    """Write a page, in a folder that is made if need be; return its path.

    Raises OSError if the file cannot be written.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    return target


def embedded(data: Any) -> str:
    """Return JSON for a `<script>` element: nothing in it can end the element or open a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _text(text: str) -> str:
    """Return `text` as HTML, with units kept beside their numbers."""
    return html.escape(_UNIT.sub("\u00a0", formats.plain(text, _LONGEST_TEXT)))
