"""What two sides are compared by, each with its value on both and in resampled runs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadtests.columns import Columns, Floats, applicable, percentile
from loadtests.comparing.blocks import Cells, Places
from loadtests.comparing.resampling import CONFIDENCE_Z, Draws, freedom_of, percentiles_of, student_95
from loadtests.summary import Summary
from loadtests.units import Unit

FEWEST_SPREAD = 5.0
"""Blocks over which what decides a figure must be spread, in effect, on a side of one run. Of five, a
resampled run has none with probability e^-5 = 0.7 %, so that they are in its middle 95 %. Of fewer, a
stretch of time or two decides, and a single run cannot tell how these would come out again."""
_ONE_STRETCH = "the requests that decide it came within a few stretches of time, and there is only one run"
_ONE_FIGURE = "it has one value per run, and there is only one run"
_LARGEST = "the maximum of one run does not predict that of the next"


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """The runs of one side, as arrays."""

    columns: tuple[Columns, ...]
    summaries: tuple[Summary, ...]
    draws: Draws


@dataclass(frozen=True, slots=True, eq=False)
class Measure:
    """One figure on both sides."""

    name: str
    unit: Unit
    higher_is_better: bool
    a: float | None
    """None where nothing on the side applies."""
    b: float | None
    drawn: Floats | None = None
    """B - A in resampled runs; None where these runs tell no noise."""
    wider: float = 1.0
    """How many times as wide as the middle of `drawn` an interval must be: see `resampling.interval`."""
    why: str = ""
    """Why they tell none."""


@dataclass(frozen=True, slots=True)
class _Latency:
    """Percentiles of something, seconds."""

    name: str
    values: Callable[[Columns], Floats]
    times: Callable[[Columns], Floats]
    shares: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Ratio:
    """Something over something else, both by cell."""

    name: str
    unit: Unit
    higher_is_better: bool
    above: Callable[[Cells, Columns], Floats]
    below: Callable[[Cells, Columns, Summary], Floats]


@dataclass(frozen=True, slots=True)
class _PerRun:
    """One figure a run."""

    name: str
    unit: Unit
    figure: Callable[[Summary], float | None]


def _span(cells: Cells, columns: Columns, summary: Summary) -> Floats:
    """Seconds of each cell within `Rates.span_s`; what of it lies beyond the last cell is in the last."""
    if not len(columns.at_s):
        return np.zeros(cells.count)
    edges = np.minimum(np.arange(cells.count + 1) * cells.width_s, summary.rates.span_s)
    edges[-1] = summary.rates.span_s
    return np.diff(edges)


_LATENCIES = (
    _Latency("TTFT", lambda c: c.ttft_s, lambda c: c.at_s, (0.50, 0.95, 0.99)),
    _Latency("warm TTFT", lambda c: c.ttft_s[~c.cold], lambda c: c.at_s[~c.cold], (0.50, 0.95, 0.99)),
    _Latency("ITL", lambda c: c.gap_s, lambda c: c.gap_at_s, (0.50, 0.95, 0.99)),
    _Latency(
        "hundred tokens",
        lambda c: applicable(c.hundred_s),
        lambda c: c.at_s[~np.isnan(c.hundred_s)],
        (0.50, 0.95),
    ),
    _Latency("end to end", lambda c: applicable(c.e2e_s), lambda c: c.at_s[~np.isnan(c.e2e_s)], (0.50, 0.95)),
    _Latency(
        "cold wait",
        lambda c: applicable(c.cold_wait_s),
        lambda c: c.at_s[~np.isnan(c.cold_wait_s)],
        (0.50, 1.0),
    ),
)
_RATIOS = (
    _Ratio("output tokens", "per_s", True, lambda cells, c: cells.total(c.piece_at_s, c.piece_tokens), _span),
    _Ratio(
        "error rate",
        "share",
        False,
        lambda cells, c: cells.total(c.at_s, c.error.astype(np.float64)),
        lambda cells, c, summary: cells.total(c.at_s, np.ones(len(c.at_s))),
    ),
    _Ratio(
        "cached prompts",
        "share",
        True,
        lambda cells, c: cells.total(c.at_s, c.cached_tokens),
        lambda cells, c, summary: cells.total(c.at_s, c.prompt_tokens),
    ),
)
_PER_RUN = (
    _PerRun("GPU-seconds", "gpu_s", lambda summary: summary.gpu_seconds),
    _PerRun("cost", "usd", lambda summary: summary.dollars),
)


def measures(a: Side, b: Side, cells: Cells) -> Iterator[Measure]:
    """All that applies to something on either side, in the order in which they are read."""
    cold = any(columns.cold.any() for side in (a, b) for columns in side.columns)
    for latency in _LATENCIES:
        if latency.name != "warm TTFT" or cold:
            yield from _latency(latency, (a, b), cells)
    for ratio in _RATIOS:
        yield from _ratio(ratio, (a, b), cells)
    for per_run in _PER_RUN:
        yield from _per_run(per_run, (a, b))


def _latency(latency: _Latency, sides: tuple[Side, Side], cells: Cells) -> Iterator[Measure]:
    values = [[latency.values(columns) for columns in side.columns] for side in sides]
    where = [[cells.of(latency.times(columns)) for columns in side.columns] for side in sides]
    pools = [np.sort(np.concatenate(side)) for side in values]
    if not any(map(len, pools)):
        return
    drawn = [
        percentiles_of(side.draws, observed, places, latency.shares)
        for side, observed, places in zip(sides, values, where, strict=True)
        if all(map(len, pools))
    ]
    repeated = min(map(len, values)) > 1
    for place, share in enumerate(latency.shares):
        name = f"{latency.name} max" if share == 1.0 else f"{latency.name} P{100 * share:g}"
        a, b = (percentile(pool, share) if len(pool) else None for pool in pools)
        if a is None or b is None:
            yield Measure(name, "s", False, a, b)
        elif share == 1.0:
            yield Measure(name, "s", False, a, b, why=_LARGEST)
        elif not repeated and _spread(values, where, (a, b), cells) < FEWEST_SPREAD:
            yield Measure(name, "s", False, a, b, why=_ONE_STRETCH)
        else:
            alone = [[percentile(np.sort(run), share) for run in side if len(run)] for side in values]
            difference = _difference(drawn[0][place], drawn[1][place])
            yield Measure(name, "s", False, a, b, difference, _wider(alone, difference, cells))


def _spread(
    values: Sequence[Sequence[Floats]],
    where: Sequence[Sequence[Places]],
    at: tuple[float, float],
    cells: Cells,
) -> float:
    """Over how many blocks the observations from the percentile on are spread, on the side with fewer."""
    spreads = []
    for observed, places, bound in zip(values, where, at, strict=True):
        beyond = np.concatenate([cell[value >= bound] for value, cell in zip(observed, places, strict=True)])
        spreads.append(cells.spread(np.bincount(beyond, minlength=cells.count).astype(np.float64)))
    return min(spreads)


def _ratio(ratio: _Ratio, sides: tuple[Side, Side], cells: Cells) -> Iterator[Measure]:
    above = [[ratio.above(cells, columns) for columns in side.columns] for side in sides]
    below = [
        [ratio.below(cells, *both) for both in zip(side.columns, side.summaries, strict=True)]
        for side in sides
    ]
    a, b = (
        float(np.sum(over) / np.sum(under)) if np.sum(under) > 0 else None
        for over, under in zip(above, below, strict=True)
    )
    measure = Measure(ratio.name, ratio.unit, ratio.higher_is_better, a, b)
    if a is None or b is None:
        if a != b:
            yield measure
        return
    repeated = min(map(len, below)) > 1
    if not repeated and min(cells.spread(np.sum(side, axis=0)) for side in below) < FEWEST_SPREAD:
        yield replace(measure, why=_ONE_STRETCH)
        return
    drawn = []
    for side, over, under in zip(sides, above, below, strict=True):
        amount, per = side.draws.total(over), side.draws.total(under)
        drawn.append(np.where(per > 0, amount / np.where(per > 0, per, 1.0), np.nan))
    alone = [
        [float(over.sum() / under.sum()) for over, under in zip(*both, strict=True) if under.sum() > 0]
        for both in zip(above, below, strict=True)
    ]
    difference = _difference(drawn[0], drawn[1])
    yield replace(measure, drawn=difference, wider=_wider(alone, difference, cells))


def _per_run(per_run: _PerRun, sides: tuple[Side, Side]) -> Iterator[Measure]:
    """Only several runs of each side tell its noise."""
    figures = [[per_run.figure(summary) for summary in side.summaries] for side in sides]
    known = [[figure for figure in side if figure is not None] for side in figures]
    if not any(map(any, known)):
        return
    a, b = (float(np.mean(side)) if side else None for side in known)
    if a is None or b is None:
        yield Measure(per_run.name, per_run.unit, False, a, b)
    elif min(map(len, known)) < 2 or known != figures:
        yield Measure(per_run.name, per_run.unit, False, a, b, why=_ONE_FIGURE)
    else:
        drawn = [
            side.draws.runs @ np.array(one) / side.draws.runs.sum(axis=1)
            for side, one in zip(sides, known, strict=True)
        ]
        wider = student_95(sum(map(len, known)) - len(known)) / CONFIDENCE_Z
        yield Measure(per_run.name, per_run.unit, False, a, b, drawn[1] - drawn[0], wider)


def _wider(alone: Sequence[Sequence[float]], difference: Floats, cells: Cells) -> float:
    """For few blocks or runs; and for what blocks miss, unless several runs show it."""
    missed = cells.missed if min(map(len, alone)) < 2 else 1.0
    return missed * student_95(freedom_of(alone, difference, cells.blocks)) / CONFIDENCE_Z


def _difference(a: Floats, b: Floats) -> Floats:
    """B - A of the draws in which both have a value; never on both sides is no difference."""
    with np.errstate(invalid="ignore"):
        difference = np.where(a == b, 0.0, b - a)
    kept: Floats = difference[~(np.isnan(a) | np.isnan(b))]
    return kept
