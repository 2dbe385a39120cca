"""The comments that document values.yaml: those that begin with `# -- `, each above its key."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_KEY = re.compile(r"^( *)([A-Za-z0-9_./-]+):")
_MARK = "# -- "

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comments:
    """Descriptions by the path of their key."""

    by_path: Mapping[Path, str]

    @classmethod
    def read(cls, text: str) -> Comments:
        """Those in the text of values.yaml."""
        found: dict[Path, str] = {}
        path: list[tuple[int, str]] = []
        described: list[str] = []
        for line in text.splitlines():
            bare = line.strip()
            if bare.startswith(_MARK):
                described = [bare.removeprefix(_MARK)]
            elif bare.startswith("#"):
                if described:
                    described.append(bare.removeprefix("#").strip())
            elif match := _KEY.match(line):
                indent = len(match[1])
                path = [(depth, name) for depth, name in path if depth < indent] + [(indent, match[2])]
                if described:
                    found[tuple(name for _, name in path)] = " ".join(described)
                described = []
            else:
                described = []
        return cls(found)

    def of(self, path: Path) -> str:
        """The description of a key, or nothing."""
        return self.by_path.get(path, "")


def leaves(values: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every value that is not a mapping of others, with its path. An empty mapping is a value."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value
