"""Rows and runs of the matrix without replays."""

from benchmarks.law_cells.cells import BASE, Cell
from benchmarks.law_cells.figures import CellRun
from benchmarks.law_cells.results import Row
from benchmarks.law_cells.traffic import MadeUp
from replay.defaults import ORACLE, OURS, STATIC

CALM = MadeUp("calm", ((2.0, 120.0),), smooth=True)
BURSTS = MadeUp("bursts", ((1.0, 100.0), (20.0, 20.0)), smooth=False)


def run(gpu_seconds: float, attainment: float, name: str = OURS, reversals: int = 0) -> CellRun:
    return CellRun(
        name=name, gpu_seconds=gpu_seconds, attainment=attainment, ttft_ok=attainment, infeasible=0.0,
        rejected=0, starts=3, changes=5, reversals=reversals, wall_s=0.1,
    )  # fmt: skip


def row(
    traffic: MadeUp = CALM,
    cell: Cell = BASE,
    *,
    ours: tuple[float, float] = (1200.0, 0.995),
    static: tuple[float, float] = (2000.0, 1.0),
    oracle: tuple[float, float] = (1000.0, 1.0),
    **others: tuple[float, float],
) -> Row:
    """A row of (GPU-seconds, attainment) by column."""
    runs = {OURS: run(*ours), STATIC: run(*static, name="static:7"), ORACLE: run(*oracle, name=ORACLE)}
    return Row(cell, traffic, runs | {name: run(*figures, name=name) for name, figures in others.items()})
