"""Reading the documents: fenced blocks, prose, commands, and the anchors of headings."""

import re
from functools import cache
from pathlib import Path

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
INLINE = re.compile(r"`([^`\n]+)`")
_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def blocks(document: Path, language: str) -> list[str]:
    """The fenced blocks of a language, or of none."""
    return [body for found, body in _FENCE.findall(document.read_text("utf-8")) if found == language]


def prose(document: Path) -> str:
    """All but the fenced blocks."""
    return _FENCE.sub("", document.read_text("utf-8"))


def commands(document: Path) -> list[str]:
    """The lines of fenced blocks without a language, continued lines joined, and the inline code."""
    lines = "\n".join(blocks(document, "")).replace("\\\n", " ").splitlines()
    return [line.strip() for line in (*lines, *INLINE.findall(prose(document)))]


@cache
def anchors(document: Path) -> frozenset[str]:
    """What GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.+)$", prose(document), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)
