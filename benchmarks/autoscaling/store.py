"""Finished replays on disk, one line each, so that a benchmark that was cut off goes on where it was."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from benchmarks.common.whole_lines import whole_lines

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of one replay: times in seconds, shares from 0 to 1."""

    window: str
    policy: str
    """As it was asked for."""
    variant: str
    seed: int
    name: str
    """As the policy calls itself: `static:12` where the least static fleet was asked for."""
    gpu_seconds: float
    serving: float
    idle: float
    warming: float
    draining: float
    attainment: float
    attainment_warm: float
    ttft_ok: float
    ttft_ok_warm: float
    infeasible: float
    requests: int
    cold: float
    """Requests held for a cold start."""
    rejected: int
    ttft_p95_s: float
    ttft_cold_p95_s: float
    itl_p95_s: float
    starts: int
    changes: int
    peak: int
    wall_s: float
    code: str
    """Digest of the sources of policy and replay."""


R = TypeVar("R", bound="DataclassInstance")


class Store(Generic[R]):
    """A file of runs by key, records of the dataclass `kind`; the last line of a key counts."""

    def __init__(self, path: Path, kind: type[R]) -> None:
        self._path = path
        self._kind = kind
        self._fields = {field.name for field in fields(kind)}
        self.other_versions = 0
        """Lines that another version of this benchmark wrote; they are run again."""

    def load(self) -> dict[str, R]:
        """Read the finished runs. A last line that was cut off is removed.

        Raises ValueError with the file and line, for one that is not a run.
        """
        runs: dict[str, R] = {}
        self.other_versions = 0
        for number, line in enumerate(whole_lines(self._path), 1):
            try:
                record = json.loads(line)
                key, values = str(record["key"]), dict(record["run"])
            except (ValueError, KeyError, TypeError):
                raise ValueError(f"{self._path}:{number}: not a run; delete the file") from None
            if set(values) != self._fields:
                self.other_versions += 1
                continue
            runs[key] = self._kind(**values)
        return runs

    def add(self, key: str, run: R) -> None:
        """Append `run` to the file."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": key, "run": asdict(run)}, separators=(",", ":")) + "\n")


def as_rows(runs: Sequence[R], kind: type[R]) -> dict[str, Any]:
    """Runs as one list of names and a list of values each: a tenth of the space."""
    names = [field.name for field in fields(kind)]
    return {"columns": names, "runs": [[getattr(run, name) for name in names] for run in runs]}
