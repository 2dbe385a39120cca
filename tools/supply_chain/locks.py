"""The lock files in `requirements/` as data."""

from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name
from pip_requirements_parser import RequirementsFile  # type: ignore[import-untyped]

REQUIREMENTS = Path(__file__).parents[2] / "requirements"
LOCKS = ("cpu", "gpu", "dev", "checkov", "moto", "pip", "uv")
"""Every lock file, without its ending."""
IMAGES = ("cpu", "gpu")
"""Lock files of images, by the names of their Dockerfiles."""


@dataclass(frozen=True, slots=True)
class Locked:
    """A package of a lock file, with the SHA-256 of every file of its release, in hexadecimal."""

    name: str
    version: str
    hashes: frozenset[str]


def lock_file(lock: str) -> Path:
    """Return where the lock file of that name is."""
    return REQUIREMENTS / f"{lock}.txt"


def read_lock(path: Path) -> list[Locked]:
    """Return the packages of a lock file. Raises ValueError for one without exact version and SHA-256."""
    found = []
    for line in RequirementsFile.from_file(str(path), include_nested=False).requirements:
        hashes = [text.partition("sha256:")[2] for text in line.hash_options]
        if not line.name or not line.is_pinned or not hashes or not all(len(each) == 64 for each in hashes):
            raise ValueError(f"{path.name}: {line.line} names no exact version and its SHA-256")
        found.append(Locked(canonicalize_name(line.name), str(line.get_pinned_version), frozenset(hashes)))
    return found
