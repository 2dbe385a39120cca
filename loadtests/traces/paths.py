"""Which files a trace is made of."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path

from loadtests.traces.errors import TraceError
from loadtests.traces.lines import LineFile

TracePath = str | os.PathLike[str]

LOG_SUFFIXES = (".jsonl", ".jsonl.gz")
"""Of the files in a folder that are taken for request logs."""


def trace_files(path: TracePath | Sequence[TracePath]) -> list[LineFile]:
    """The files that `path` names: itself, those it matches, the request logs in it, or all it lists.

    Of several files, those without a byte are left out: a replica makes its log before its first request.

    Raises:
        TraceError: if there are none, or one cannot be read.
    """
    if not isinstance(path, str | os.PathLike):
        found = [file for one in path for file in _named(one)]
        if not found:
            raise TraceError("no trace given")
    else:
        found = _named(path)
    if len(found) == 1:
        return [LineFile(found[0])]
    filled = [file for file in dict.fromkeys(found) if not file.is_file() or file.stat().st_size > 0]
    if not filled:
        raise TraceError(f"{name_of(path)}: all {len(found)} files are empty")
    return [LineFile(file) for file in filled]


def name_of(path: TracePath | Sequence[TracePath]) -> str:
    """What to call it in reports."""
    if isinstance(path, str | os.PathLike):
        return Path(path).name or str(path)
    names = [name_of(one) for one in path]
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _named(path: TracePath) -> list[Path]:
    given = Path(path)
    if given.is_dir():
        logs = sorted(file for file in given.iterdir() if file.is_file() and file.name.endswith(LOG_SUFFIXES))
        if not logs:
            raise TraceError(
                f"{given}: a folder without request logs: no file in it ends with {' or '.join(LOG_SUFFIXES)}"
            )
        return logs
    if not given.exists() and glob.has_magic(str(given)):
        matched = sorted(Path(file) for file in glob.glob(str(given)) if not Path(file).is_dir())
        if not matched:
            raise TraceError(f"{given}: no file matches this pattern")
        return matched
    return [given]
