"""Our policy as one checkout has it."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_SOURCES = ("serve_app/policy", "serve_app/controller", "serve_app/settings/knobs.py", "serve_app/learning")
"""The last is missing in checkouts from before it was apart from the policy."""


@dataclass(frozen=True, slots=True)
class Law:
    """A law of ours, by its sources."""

    name: str
    """`ours`, or as the command line names it."""
    checkout: Path
    digest: str

    @classmethod
    def of(cls, name: str, checkout: Path) -> Self:
        """The law of a checkout. Raises ValueError where it has none."""
        if not (checkout / _SOURCES[0]).is_dir():
            raise ValueError(f"--law: {checkout} has no {_SOURCES[0]}")
        digest = hashlib.sha256()
        for place in _SOURCES:
            found = checkout / place
            paths = sorted(found.rglob("*.py")) if found.is_dir() else [found]
            for path in filter(Path.exists, paths):
                digest.update(f"{path.relative_to(checkout)}\n".encode())
                digest.update(path.read_bytes())
        return cls(name, checkout.resolve(), digest.hexdigest()[:12])
