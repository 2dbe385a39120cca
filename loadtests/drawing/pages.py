"""HTML pages as single files that ask nobody for anything, and work where they lie.

A page is a template, style sheets and plain scripts, put together with its data as JSON. The template's
content security policy forbids every request, so that what the page shows can only be what is in it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any

import numpy as np

from loadtests.drawing import palette

SHARED = "loadtests.drawing.page"
"""The package of the scripts and styles that pages have in common."""
_SLOT = re.compile(r"\{\{(\w+)\}\}")


def assembled(
    package: str, styles: Iterable[str], scripts: Iterable[str], data: Any, texts: Mapping[str, str]
) -> str:
    """The page of a package as text.

    Args:
        package: Has the template, `page.html`. A style or script that is not there is a shared one.
        styles: Files, in the order in which they override each other.
        scripts: Files, in the order in which they need each other.
        data: What the page draws, as plain data without NaN or infinities.
        texts: What the template's other slots hold, as HTML.
    """
    filled = {
        **texts,
        "light": palette.css(palette.LIGHT),
        "dark": palette.css(palette.DARK),
        "style": "\n".join(_asset(package, name) for name in styles),
        "script": "\n".join(_asset(package, name) for name in scripts),
        "data": embedded(data),
    }
    # In one pass, so that braces in a text are never taken for a slot.
    return _SLOT.sub(lambda slot: filled[slot[1]], _asset(package, "page.html"))


def embedded(data: Any) -> str:
    """JSON that can stand in a `<script>` element: nothing in it can end the element or open a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def finite(value: Any) -> Any:
    """Plain data with null for each number that JSON has no word for."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _asset(package: str, name: str) -> str:
    own = resources.files(package).joinpath(name)
    file = own if own.is_file() else resources.files(SHARED).joinpath(name)
    return file.read_text(encoding="utf-8")
