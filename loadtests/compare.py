"""Two sides of runs of one scenario: what differs, and whether that is more than noise."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from loadtests.columns import Columns
from loadtests.comparing.blocks import Cells, cut
from loadtests.comparing.measures import Measure, Side, measures
from loadtests.comparing.resampling import Draws, cell_weights, interval
from loadtests.record import Run
from loadtests.summary import summarize
from loadtests.units import Unit
from loadtests.verdicts import judge
from serve_app.cli.formats import count

_ARRIVALS = ("arrivals", "repeat", "closed")
_ASKED = (*_ARRIVALS, "requests")
_NO_MATTER = ("name", "about", "seed")
_LONGEST = 4
"""Keys that are named; of more, how many."""


def same_arrivals(runs: Sequence[Run]) -> bool:
    """Whether requests were to come alike over time, apart from what the seed draws."""
    first = [runs[0].scenario.get(key) for key in _ARRIVALS]
    return all([run.scenario.get(key) for key in _ARRIVALS] == first for run in runs)


def asked_unlike(runs: Sequence[Run]) -> list[str]:
    """The keys of the scenario in which runs were asked different things, apart from what the seed draws."""
    return [key for key in _ASKED if any(run.scenario.get(key) != runs[0].scenario.get(key) for run in runs)]


_PASSING = ("load before",)
"""Facts that no two runs share."""


def differences(a: Sequence[Run], b: Sequence[Run]) -> list[str]:
    """What differs, a sentence each."""
    return [
        *_same_run(a, b),
        *_unlike_scenarios([*a, *b]),
        *_unlike("seeds", a, b, lambda run: str(run.scenario.get("seed"))),
        *_unlike("URLs", a, b, lambda run: run.url),
        *_unlike_facts("machines", a, b, lambda run: run.machine),
        *_unlike_facts("versions", a, b, lambda run: run.versions),
    ]


def _same_run(a: Sequence[Run], b: Sequence[Run]) -> list[str]:
    began = {(run.scenario_hash, run.url, run.began) for run in a}
    same = sum((run.scenario_hash, run.url, run.began) in began for run in b)
    return [f"{count(same, 'run')} of B {'is' if same == 1 else 'are'} on A too."] if same else []


def _unlike_scenarios(runs: Sequence[Run]) -> list[str]:
    if len({run.scenario_hash for run in runs}) == 1:
        return []
    keys = dict.fromkeys(key for run in runs for key in run.scenario)
    unlike = [
        key
        for key in keys
        if key not in _NO_MATTER and any(run.scenario.get(key) != runs[0].scenario.get(key) for run in runs)
    ]
    if not unlike:
        return []
    return [f"The scenarios are not the same: they differ in {', '.join(unlike)}."]


def _unlike(what: str, a: Sequence[Run], b: Sequence[Run], of: Callable[[Run], str]) -> list[str]:
    ours, theirs = ([*dict.fromkeys(of(run) for run in runs)] for runs in (a, b))
    if len({*ours, *theirs}) == 1:
        return []
    return [f"The {what} differ: {', '.join(ours)} on A, {', '.join(theirs)} on B."]


def _unlike_facts(
    what: str, a: Sequence[Run], b: Sequence[Run], of: Callable[[Run], Mapping[str, Any]]
) -> list[str]:
    keys = dict.fromkeys(key for run in (*a, *b) for key in of(run) if key not in _PASSING)
    unlike = []
    for key in keys:
        ours, theirs = ([*dict.fromkeys(str(of(run).get(key, "unknown")) for run in runs)] for runs in (a, b))
        if len({*ours, *theirs}) > 1:
            unlike.append(f"{key} is {', '.join(ours)} on A and {', '.join(theirs)} on B")
    if not unlike:
        return []
    more = f"; and {len(unlike) - _LONGEST} more" if len(unlike) > _LONGEST else ""
    return [f"The {what} differ: {'; '.join(unlike[:_LONGEST])}{more}."]


Word = Literal["better", "worse", "within the noise", "no noise known", "not comparable"]
_SEED = 20_260_301
"""Seed of the resampling: comparing the same runs always gives the same result."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure on both sides. Better and worse are said of B."""

    name: str
    unit: Unit
    """See `units.figure`."""
    higher_is_better: bool
    a: float | None
    """Over all requests of the side, or on average of its runs; None where nothing applies."""
    b: float | None
    difference: float | None
    """B - A; None where one of them is None, or both never came."""
    relative: float | None
    """(B - A) / A; None where that is not a number."""
    low: float | None
    """The 95 % interval of `difference`; None where no noise is known."""
    high: float | None
    word: Word
    why: str = ""
    """Why the word is `no noise known` or `not comparable`; empty otherwise."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One side, for people."""

    runs: int
    requests: int
    scenario: str
    url: str
    """Those of the first run; the notes tell where others differ."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What B is against A."""

    a: Compared
    b: Compared
    metrics: tuple[Metric, ...]
    notes: tuple[str, ...]
    """What differs beside the figures, and what the intervals hold and do not hold, in sentences."""
    invalid: tuple[str, ...]
    """Why the figures cannot be trusted: the sides were asked different things, or a run is invalid; empty if
    they can."""

    @property
    def words(self) -> str:
        """All of it in a sentence or two."""
        by = {
            word: [metric.name for metric in self.metrics if metric.word == word]
            for word in ("better", "worse", "within the noise", "no noise known", "not comparable")
        }
        told = [f"B is {word} in {', '.join(by[word])}" for word in ("better", "worse") if by[word]]
        sentence = "; ".join(told) or "Nothing is known to differ between A and B by more than noise"
        rest = [
            f"{len(by[word])} {word}"
            for word in ("within the noise", "no noise known", "not comparable")
            if by[word]
        ]
        sentence = f"{sentence} ({', '.join(rest)})." if rest else f"{sentence}."
        if self.invalid:
            return f"These numbers cannot be trusted: {'; '.join(self.invalid)}. {sentence}"
        return sentence


def compare(a: Sequence[Run], b: Sequence[Run]) -> Comparison:
    """Compare the runs `b` with the runs `a`, all of one scenario.

    Percentiles are those of all requests of a side. Their noise is told by resampling: with one run on a
    side, blocks of time, the same ones on both sides where requests were to come at the same times, so that
    what the scenario itself does over time cancels; with several on both, runs and then blocks. Where the
    runs cannot tell the noise, no interval is given, and the reason is.

    Raises:
        ValueError: a side without runs, or with a run whose scenario is not one.
    """
    for name, runs in (("A", a), ("B", b)):
        if not runs:
            raise ValueError(f"side {name} has 0 runs: at least 1 is needed")
    rng = np.random.default_rng(_SEED)
    columns = tuple(tuple(Columns.of(run.records) for run in runs) for runs in (a, b))
    summaries = tuple(tuple(summarize(run) for run in runs) for runs in (a, b))
    cells = cut(columns[0], columns[1])
    weights = cell_weights(rng, cells)
    paired = same_arrivals([*a, *b])
    sides = (
        Side(columns[0], summaries[0], Draws.of(rng, weights, len(a))),
        Side(
            columns[1], summaries[1], Draws.of(rng, weights if paired else cell_weights(rng, cells), len(b))
        ),
    )
    metrics = tuple(_metric(one) for one in measures(sides[0], sides[1], cells))
    asked = asked_unlike([*a, *b])
    invalid = (
        *([f"the runs were asked different things: they differ in {', '.join(asked)}"] if asked else ()),
        *(
            f"run {place + 1} of {name} is invalid: {reason}"
            for name, runs, figures in (("A", a, summaries[0]), ("B", b, summaries[1]))
            for place, (run, summary) in enumerate(zip(runs, figures, strict=True))
            for reason in judge(run, summary).invalid
        ),
    )
    notes = (*differences(a, b), *_method(cells, len(a), len(b), paired, metrics))
    return Comparison(_compared(a), _compared(b), metrics, notes, invalid)


def _compared(runs: Sequence[Run]) -> Compared:
    return Compared(
        runs=len(runs),
        requests=sum(len(run.records) for run in runs),
        scenario=str(runs[0].scenario.get("name", "")),
        url=runs[0].url,
    )


def _metric(measure: Measure) -> Metric:
    a, b, why = measure.a, measure.b, measure.why
    difference = relative = low = high = None
    word: Word = "no noise known"
    if a is None or b is None:
        word, why = "not comparable", f"{'A' if a is None else 'B'} has none"
    elif math.isinf(a) and math.isinf(b):
        word, why = "not comparable", "it never came on either side"
    else:
        difference = 0.0 if math.isclose(a, b) else b - a  # equal figures may be summed in another order
        relative = difference / a if a and math.isfinite(a) and math.isfinite(b) else None
        if measure.drawn is not None:
            low, high = interval(difference, measure.drawn, measure.wider)
            word = _word(low, high, measure.higher_is_better)
    return Metric(
        name=measure.name,
        unit=measure.unit,
        higher_is_better=measure.higher_is_better,
        a=a,
        b=b,
        difference=difference,
        relative=relative,
        low=low,
        high=high,
        word=word,
        why=why,
    )


def _word(low: float, high: float, higher_is_better: bool) -> Word:
    if low <= 0 <= high:
        return "within the noise"
    return "better" if (low > 0) == higher_is_better else "worse"


def _method(cells: Cells, a: int, b: int, paired: bool, metrics: Sequence[Metric]) -> list[str]:
    judged = sum(metric.low is not None for metric in metrics)
    blocks = f"{count(cells.blocks, 'block')} of {cells.block_s:.3g} s"
    if min(a, b) > 1:
        how = f"runs and then {blocks} were resampled, so they include the noise between runs"
    else:
        how = (
            f"{blocks} were resampled, so they do not include the noise between runs, which only "
            f"several runs per side show"
        )
    alone = sum(metric.word == "no noise known" for metric in metrics)
    notes = [f"The intervals are 95 % ones: {how}."]
    if not paired:
        notes.append("Requests came at other times on the two sides, so each side was resampled on its own.")
    if alone and min(a, b) < 2:
        notes.append(
            f"For {count(alone, 'figure')}, one run per side cannot tell a difference from noise: repeat the "
            f"runs, and compare several with several."
        )
    if cells.memory > cells.block:
        notes.append(
            f"Differences between the sides persist for about {cells.memory * cells.width_s:.3g} s, longer "
            f"than a block: the intervals are too narrow, and longer runs would give better ones."
        )
    if judged > 1:
        notes.append(
            f"About one in twenty of the {count(judged, 'figure')} with an interval is called better or "
            f"worse even where nothing differs."
        )
    return notes
