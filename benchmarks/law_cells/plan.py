"""The replays to run: every law, peer and hindsight schedule in every cell on its traffic."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from benchmarks.autoscaling.plan import effort
from benchmarks.law_cells.cells import Cell
from benchmarks.law_cells.law import Law
from benchmarks.law_cells.traffic import Traffic
from replay.defaults import ORACLE, OURS, STATIC

PEERS = ("ray", "hpa:ongoing=10", "kpa:5")
SEED = 0


@dataclass(frozen=True, slots=True)
class CellJob:
    """One replay."""

    cell: Cell
    traffic: Traffic
    policy: str
    """`ours` for every law of ours."""
    law: Law | None = None
    """Whose sources decide; None for other policies."""

    @property
    def key(self) -> str:
        """A key of the inputs. Of code, only a law's own is part of it: an oracle takes long."""
        inputs: dict[str, object] = {
            "traffic": self.traffic.digest,
            "cut_s": self.traffic.cut_s,
            "policy": self.policy,
            "seed": SEED,
            "fleet": self.cell.fleet,
        }
        if self.law is not None:
            inputs |= {"law": self.law.digest, "reporting": asdict(self.cell.reporting)}
        return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:24]

    @property
    def column(self) -> str:
        """The column of the matrix that it fills."""
        return self.policy if self.law is None else self.law.name

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.cell.name} {self.traffic.name} {self.column}"

    @property
    def effort(self) -> float:
        """Roughly the seconds it takes."""
        return effort(self.policy, self.traffic.requests, self.traffic.duration_s)


def plan(
    cells: Iterable[Cell],
    windows: Sequence[Traffic],
    laws: Sequence[Law],
    policies: Sequence[str] = (*PEERS, STATIC, ORACLE),
    cut_s: float | None = None,
) -> list[CellJob]:
    """Every replay, cell by cell, in the order of the matrix. Some have equal keys.

    `windows` are what cells without traffic of their own are replayed on; `cut_s` cuts that of the others.
    """
    jobs = []
    for cell in cells:
        own = None if cell.traffic is None else replace(cell.traffic, cut_s=cut_s)
        for traffic in windows if own is None else [own]:
            jobs += [CellJob(cell, traffic, OURS, law) for law in laws]
            jobs += [CellJob(cell, traffic, policy) for policy in policies]
    return jobs
