"""Finished replays by cell, traffic and column."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.law_cells.cells import Cell
from benchmarks.law_cells.figures import CellRun
from benchmarks.law_cells.plan import CellJob
from benchmarks.law_cells.traffic import Traffic
from replay.defaults import GOAL, ORACLE, OURS, STATIC

_HAIR = 1e-9
"""0.99 as a sum of shares is 0.98999999."""


@dataclass(frozen=True, slots=True)
class Row:
    """One cell on one traffic, and its runs by column."""

    cell: Cell
    traffic: Traffic
    runs: Mapping[str, CellRun]

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.cell.name} {self.traffic.name}" if self.cell.traffic is None else self.cell.name

    def over_oracle(self, column: str) -> float | None:
        """GPU-seconds over the oracle's; None where either was not run, or the oracle attained too little."""
        run, oracle = self.runs.get(column), self.runs.get(ORACLE)
        if run is None or oracle is None or not attained(oracle):
            return None
        return run.gpu_seconds / oracle.gpu_seconds

    @property
    def attainable(self) -> bool | None:
        """Whether a static fleet attains the goal; None where that was not run."""
        static = self.runs.get(STATIC)
        return None if static is None else attained(static)


def attained(run: CellRun) -> bool:
    """Whether a run attains 99 %."""
    return run.attainment >= GOAL - _HAIR


def rows(jobs: Sequence[CellJob], finished: Mapping[str, CellRun]) -> list[Row]:
    """The rows of the matrix, in the order of the jobs. `finished` is by the key of a job."""
    cells: dict[tuple[str, str], tuple[CellJob, dict[str, CellRun]]] = {}
    for job in jobs:
        _, runs = cells.setdefault((job.cell.name, job.traffic.name), (job, {}))
        if job.key in finished:
            runs[job.column] = finished[job.key]
    return [Row(job.cell, job.traffic, runs) for job, runs in cells.values()]


def columns(jobs: Iterable[CellJob]) -> list[str]:
    """The columns of the matrix: ours, other laws of ours, peers, the static fleet; the oracle is in each."""
    found = dict.fromkeys(job.column for job in jobs)
    return sorted(found, key=lambda name: (name != OURS, name in (STATIC, ORACLE)))
