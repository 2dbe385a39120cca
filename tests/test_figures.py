"""Every figure of the README and the changelog is on a page that it links to."""

import re
from pathlib import Path

import pytest

from tests.markdown import LINK

PROJECT = Path(__file__).parents[1]
_CODE = re.compile(r"```.*?```|`[^`]*`|<!--.*?-->|!\[[^\]]*\]\([^)]*\)", re.DOTALL)
_VERSION = re.compile(
    r"(?:Python|vLLM|Debian|Version|HTTP/|License)\s?[\d.]+(?: (?:to|and) [\d.]+)?|127\.0\.0\.1|## \[.*"
)
_UNIT = r"\s?(?:%|s\b|ms\b|µs\b|seconds?\b|minutes?\b|[KMG]i?B\b|tok/s|times\b|of \d)"
_FIGURE = re.compile(rf"(?<![\w.,])(\d+(?:,\d{{3}})*\.\d+|\d+(?:,\d{{3}})+|\d+(?={_UNIT}))")


def _blocks(text: str) -> list[str]:
    """Return paragraphs, list items and table rows."""
    text = _CODE.sub(" ", text)
    return [block for block in re.split(r"\n\s*\n|\n(?=- )|\n(?=\|)|(?<=\|)\n", text) if block.strip()]


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md"])
def test_each_figure_is_on_a_linked_page(name: str) -> None:
    missing = []
    for block in _blocks((PROJECT / name).read_text("utf-8")):
        targets = [target.partition("#")[0] for target in LINK.findall(block) if "//" not in target]
        pages = [(PROJECT / target).read_text("utf-8") for target in targets if target.endswith(".md")]
        plain = _VERSION.sub(" ", re.sub(r"\]\([^)]*\)", "]", block))
        missing += [
            f"{figure} in: {' '.join(block.split())[:80]}"
            for figure in _FIGURE.findall(plain)
            if not any(re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d]|[.,]\d)", page) for page in pages)
        ]
    assert missing == []
