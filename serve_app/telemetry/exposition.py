"""Merging the expositions of several metrics agents into one, under Tideserve's own names."""

from __future__ import annotations

import re
from collections.abc import Iterable

_PREFIX = "ray_"
_OURS = re.compile(r"^ray_(llm_[a-zA-Z0-9_]*)")
_LOST_NODE = "# lost node"
_SUFFIXES = ("_bucket", "_sum", "_count")


def lost_node(url: str, why: object) -> str:
    """The exposition of a node whose metrics agent did not answer: a comment that stays in the result."""
    return f"{_LOST_NODE} {url}: {str(why) or type(why).__name__}\n"


def merge_expositions(texts: Iterable[str]) -> str:
    """The `llm_*` series of every text, each family described once, its samples together.

    Ray prefixes every series with `ray_`; here they carry the names the documentation gives.
    """
    described: dict[str, dict[str, str]] = {}
    samples: dict[str, list[str]] = {}
    lines: list[str] = []
    for text in texts:
        histograms: set[str] = set()
        for line in text.splitlines():
            if line.startswith("#"):
                _, keyword, name, *rest = [*line.split(" ", 3), "", ""]
                if line.startswith(_LOST_NODE):
                    lines.append(line)
                elif keyword in ("HELP", "TYPE") and _OURS.match(name):
                    family = name.removeprefix(_PREFIX)
                    described.setdefault(family, {})[keyword] = rest[0]
                    if keyword == "TYPE" and rest[0] == "histogram":
                        histograms.add(family)
                continue
            match = _OURS.match(line)
            if match is None:
                continue
            samples.setdefault(_family(match[1], histograms), []).append(line.removeprefix(_PREFIX))
    for family in sorted(samples):
        texts_of = described.get(family, {})
        lines.append(f"# HELP {family} {texts_of.get('HELP', '')}")
        lines.append(f"# TYPE {family} {texts_of.get('TYPE', 'untyped')}")
        lines += samples[family]
    return "\n".join(lines) + "\n"


def _family(name: str, histograms: set[str]) -> str:
    for suffix in _SUFFIXES:
        if name.endswith(suffix) and name.removesuffix(suffix) in histograms:
            return name.removesuffix(suffix)
    return name
