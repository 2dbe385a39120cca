"""Which state of the code a run was made with."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import metadata

from benchmarks import REPOSITORY
from loadtests.machine import versions

_FOLDERS = ("serve_app/policy", "replay")
_DISTRIBUTIONS = ("numpy", "numba")
_SUFFIXES = (".py", ".yaml")


@cache
def code() -> str:
    """A digest of the sources that runs depend on."""
    digest = hashlib.sha256()
    for folder in _FOLDERS:
        for path in sorted((REPOSITORY / folder).rglob("*")):
            if path.suffix in _SUFFIXES and "report" not in path.parts:
                digest.update(f"{path.relative_to(REPOSITORY)}\n".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def library_versions() -> dict[str, str]:
    """Python, the libraries that compute, and the commit."""
    found = versions()
    kept = {name: found[name] for name in ("python", "commit")}
    return {**kept, **{name: metadata.version(name) for name in _DISTRIBUTIONS}, "code": code()}
