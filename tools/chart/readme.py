"""The chart's README: how to install it, and a table of every value, from the comments in values.yaml."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tools.chart.values_comments import Comments, Path, leaves

_DOCUMENTED_ONCE = ("gpuProfiles",)
"""Mappings whose entries are alike: a key of any of them documents it for all."""


def readme(introduction: str, values: Mapping[str, Any], comments: Comments) -> str:
    """The README's text.

    Raises ValueError that names every value without a comment of its own or of a mapping above it.
    """
    rows, missing = [], []
    for path, value, description in documented(values, comments):
        if not description:
            missing.append(".".join(path))
        rows.append(f"| `{'.'.join(path)}` | `{_shown(value)}` | {_escaped(description)} |")
    if missing:
        raise ValueError(f"values without a comment that begins with `# -- `: {', '.join(missing)}")
    table = "\n".join(["| Value | Default | Meaning |", "|---|---|---|", *rows])
    return f"{introduction.rstrip()}\n\n## Values\n\n{table}\n"


def documented(values: Mapping[str, Any], comments: Comments) -> Iterator[tuple[Path, Any, str]]:
    """A row for each value: its path, its default, and its description or nothing.

    A mapping with a comment and none on its keys is one row: a resource list, a security context. A key that
    has a comment in one of several like mappings has no row in the others.
    """
    described = {_alike(path): text for path, text in comments.by_path.items()}
    done: set[Path] = set()
    for path, value in leaves(values):
        row = next((path[:n] for n in range(1, len(path)) if _covers_all_below(path[:n], described)), path)
        if row in done:
            continue
        done.add(row)
        description = comments.of(row)
        if description or _alike(row) not in described:
            yield row, value if row == path else _at(values, row), description


def _alike(path: Path) -> Path:
    return (path[0], "*", *path[2:]) if path[0] in _DOCUMENTED_ONCE and len(path) > 1 else path


def _covers_all_below(path: Path, described: Mapping[Path, str]) -> bool:
    alike = _alike(path)
    below = any(len(other) > len(alike) and other[: len(alike)] == alike for other in described)
    return alike in described and not below


def _at(values: Mapping[str, Any], path: Path) -> Any:
    found: Any = values
    for part in path:
        found = found[part]
    return found


def _shown(value: Any) -> str:
    return _escaped(json.dumps(value))


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
