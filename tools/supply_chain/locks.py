"""The lock files in `requirements/` as data."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REQUIREMENTS = Path(__file__).parents[2] / "requirements"
LOCKS = ("cpu", "gpu", "lab", "dev", "checkov", "pip", "uv")
"""Every lock file, without its ending."""
IMAGES = ("cpu", "gpu")
"""Those that images are made of, by the name of the Dockerfile too."""


@dataclass(frozen=True, slots=True)
class Locked:
    """One package of a lock file; `hashes` are those of every file of the release, SHA-256 in hexadecimal."""

    name: str
    version: str
    hashes: frozenset[str]


def lock_file(lock: str) -> Path:
    """Where the lock file of that name is."""
    return REQUIREMENTS / f"{lock}.txt"


def read_lock(lock: str) -> list[Locked]:
    """The packages of one lock file. Raises what `parse_lock` does."""
    return list(parse_lock(lock_file(lock).read_text("utf-8")))


def parse_lock(text: str) -> Iterator[Locked]:
    """The packages of a lock file's text.

    Raises ValueError for a line that names no exact version or has no hash, which pip would refuse too.
    """
    for line in text.replace("\\\n", " ").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        wanted, *options = re.split(r"\s+--hash=", line.strip())
        requirement = Requirement(wanted)
        pins = list(requirement.specifier)
        if len(pins) != 1 or pins[0].operator != "==" or "*" in pins[0].version:
            raise ValueError(f"{wanted}: a lock names one exact version")
        hashes = frozenset(option.removeprefix("sha256:") for option in options)
        if not hashes or not all(re.fullmatch(r"[0-9a-f]{64}", each) for each in hashes):
            raise ValueError(f"{wanted}: a lock has SHA-256 hashes")
        yield Locked(canonicalize_name(requirement.name), pins[0].version, hashes)
