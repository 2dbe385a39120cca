"""What is asked of the law over the whole matrix, and whether it is met."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

from benchmarks.law_cells.results import Row, attained
from replay.defaults import GOAL, OURS
from serve_app.cli import formats

MEAN_RATIO = 1.25
SAME_POINTS = 0.001
"""Attainment that is less by up to a tenth of a point counts as no worse."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One demand."""

    asked: str
    met: bool | None
    """None where nothing was run that it could be judged by."""
    shown: str


def verdicts(rows: Sequence[Row], laws: Sequence[str]) -> list[Verdict]:
    """Every demand; `laws` are the names of the other laws of ours."""
    found = [_attains(rows), _costs(rows)]
    for law in laws:
        found += [_not_beaten(rows, law), _no_worse(rows, law)]
    return found


def _attains(rows: Sequence[Row]) -> Verdict:
    asked = f"Smooth traffic: at least {GOAL:.0%} attainment in every cell that a static fleet attains"
    judged = [row for row in rows if row.traffic.smooth and row.attainable and OURS in row.runs]
    missed = [row for row in judged if not attained(row.runs[OURS])]
    if not judged:
        return Verdict(asked, None, "not run")
    told = "; ".join(f"{row.label} {formats.percent(row.runs[OURS].attainment)}" for row in missed)
    return Verdict(asked, not missed, f"{len(judged) - len(missed)} of {len(judged)}{_colon(told)}")


def _costs(rows: Sequence[Row]) -> Verdict:
    asked = f"Smooth traffic: on average at most {MEAN_RATIO:.2f} times the oracle's GPU-seconds"
    ratios = [(row.over_oracle(OURS), row.label) for row in rows if row.traffic.smooth and row.attainable]
    known = [(ratio, label) for ratio, label in ratios if ratio is not None]
    if not known:
        return Verdict(asked, None, "not run")
    average = mean(ratio for ratio, _ in known)
    highest, where = max(known)
    shown = f"{average:.3f} over {len(known)}; the highest is {highest:.2f}, {where}"
    return Verdict(asked, average <= MEAN_RATIO, shown)


def _not_beaten(rows: Sequence[Row], law: str) -> Verdict:
    def beaten(row: Row) -> bool:
        ours, other = row.runs[OURS], row.runs[law]
        return other.gpu_seconds < ours.gpu_seconds and other.attainment > ours.attainment

    return _none(rows, law, f"`{law}` is cheaper and attains more in no cell", beaten)


def _no_worse(rows: Sequence[Row], law: str) -> Verdict:
    def worse(row: Row) -> bool:
        return not row.traffic.smooth and (row.runs[OURS].attainment < row.runs[law].attainment - SAME_POINTS)

    return _none(rows, law, f"Bursty traffic: attainment no worse than `{law}` in any cell", worse)


def _none(rows: Sequence[Row], law: str, asked: str, wrong: Callable[[Row], bool]) -> Verdict:
    judged = [row for row in rows if OURS in row.runs and law in row.runs]
    missed = [row for row in judged if wrong(row)]
    if not judged:
        return Verdict(asked, None, "not run")
    told = "; ".join(f"{row.label}: {_pair(row, law)} to ours {_pair(row, OURS)}" for row in missed)
    return Verdict(asked, not missed, f"{len(missed)} of {len(judged)}{_colon(told)}")


def _pair(row: Row, column: str) -> str:
    run = row.runs[column]
    return f"{formats.whole(run.gpu_seconds)} GPU-s @ {formats.percent(run.attainment)}"


def _colon(told: str) -> str:
    return f": {told}" if told else ""
