"""The page of the matrix, made anew from the runs each time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.common.markdown import table
from benchmarks.law_cells.cells import Cell
from benchmarks.law_cells.law import Law
from benchmarks.law_cells.matrix import MEANING, matrix
from benchmarks.law_cells.results import Row
from benchmarks.law_cells.verdicts import Verdict


@dataclass(frozen=True, slots=True)
class Facts:
    """The command, machine and versions of the benchmark's run."""

    command: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    laws: Sequence[Law]
    cut_s: float | None
    failures: Mapping[str, str]
    """Why, by the label of each replay that came to nothing."""


_INTRODUCTION = """\
Each cell changes one thing that the law may not expect: how long a cold start or a step takes, the shape of
the step time, how its reports arrive, or the traffic. The simulated fleet, the peers' laws, the oracle and
the static fleet are those of [autoscaling.md](autoscaling.md), with the cell's cold starts and steps. One
seed. Late and lost reports reach only our policy: peers see samples of the fleet, and no reports."""

_MARKS: Mapping[bool | None, str] = {True: "met", False: "**missed**", None: "not judged"}


def page(
    rows: Sequence[Row], columns: Sequence[str], cells: Sequence[Cell], found: Sequence[Verdict], facts: Facts
) -> str:
    """The page as Markdown."""
    laws = [law.name for law in facts.laws]
    parts = [
        "# Cells in which the law could be wrong",
        _INTRODUCTION,
        _facts(facts),
        "## Verdicts",
        table(
            ["asked", "measured", ""],
            [[verdict.asked, verdict.shown, _MARKS[verdict.met]] for verdict in found],
            numbers=False,
        ),
        "## The matrix",
        MEANING,
        matrix(rows, columns, laws),
        "## The cells",
        table(["cell", "what is other there"], [[cell.name, cell.title] for cell in cells], numbers=False),
    ]
    return "\n\n".join(parts) + "\n"


def _facts(facts: Facts) -> str:
    lines = [
        f"- **Command:** `{facts.command}`",
        "- **Machine:** " + ", ".join(f"{key} {value}" for key, value in facts.machine.items()),
        "- **Versions:** " + ", ".join(f"{key} {value}" for key, value in facts.versions.items()),
        "- **Laws, by a digest of their sources:** "
        + ", ".join(f"{law.name} {law.digest}" for law in facts.laws),
    ]
    if facts.cut_s is not None:
        lines.append(f"- **Cut:** only the first {facts.cut_s:g} s of all traffic")
    lines += [f"- **Failed:** {label}: {why}" for label, why in facts.failures.items()]
    return "\n".join(lines)
