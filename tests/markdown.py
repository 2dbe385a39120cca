"""Reading the documents: fenced blocks, prose, commands, and the anchors of headings."""

import re
import shlex
from functools import cache
from pathlib import Path

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
INLINE = re.compile(r"`([^`\n]+)`")
_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


def blocks(document: Path, language: str) -> list[str]:
    """The fenced blocks of a language, or of none."""
    return [body for found, body in _FENCE.findall(document.read_text("utf-8")) if found == language]


def languages(document: Path) -> set[str]:
    """The languages of the fenced blocks. Blocks without a language are commands for a shell."""
    return {found for found, _ in _FENCE.findall(document.read_text("utf-8"))}


def shell_commands(block: str) -> list[list[str]]:
    """The words of each simple command of a block, without assignments and reserved words."""
    text = re.sub(r"(^|\s)# .*$", "", block.replace("\\\n", " "), flags=re.MULTILINE)
    words = shlex.shlex(text, posix=True, punctuation_chars="();<>|&\n")
    words.whitespace, words.commenters, words.whitespace_split = " \t", "", True
    found: list[list[str]] = [[]]
    for word in words:
        if re.fullmatch(r"[<>]+", word):
            next(words)  # the file
        elif set(word) <= set("();|&\n"):
            found.append([])
        elif found[-1] or not (word in ("do", "done", "!") or re.match(r"\w+=", word)):
            found[-1].append(word)
    return [command for command in found if command]


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
