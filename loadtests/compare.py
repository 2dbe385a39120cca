"""Two sides of runs of one scenario: the figures that differ, and whether by more than noise.

Percentiles are those of all requests of a side. Where both sides have several runs, the noise is the spread
of the runs, in a Welch interval. With one run on a side, the noise comes from a jackknife over blocks of
time, because requests close in time depend on each other: each of 20 blocks is left out in turn, and the
moves of the figure give its variance (Künsch, "The jackknife and the bootstrap for general stationary
observations", 1989). Where the runs cannot tell the noise, there is no interval, and the reason is given.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from loadtests.columns import Columns, Floats, applicable, percentile
from loadtests.record import Run
from loadtests.summary import Summary, summarize
from loadtests.units import Unit
from loadtests.verdicts import judge
from serve_app.cli.formats import count, plain

BLOCKS = 20
FEWEST_BLOCKS = 5.0
"""With one run per side, the observations that decide a figure must be spread over as many blocks, in effect:
a stretch of time or two says nothing about the next run."""
_ONE_STRETCH = "the requests that decide it came within a few stretches of time, and there is only one run"
_ONE_FIGURE = "it has one value per run, and there is only one run"
_LARGEST = "the maximum of one run does not predict that of the next"
_SOMETIMES = "it never came in some runs or stretches of time, and came in others"
_MOST_NAMED = 4
_ARRIVALS = ("arrivals", "repeat", "closed")
_STUDENT_95 = ((1 / 1000, 1 / 20, 1 / 10, 1 / 7, 1 / 5, 1 / 4, 1 / 3, 1 / 2, 1.0),
               (1.962, 2.086, 2.228, 2.365, 2.571, 2.776, 3.182, 4.303, 12.71))  # fmt: skip
"""Student's 97.5 % quantiles, by the inverse of the degrees of freedom, in which they are nearly straight."""

Word = Literal["better", "worse", "within the noise", "no noise known", "not comparable"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure on both sides. Better and worse are said of B."""

    name: str
    unit: Unit
    higher_is_better: bool
    a: float | None
    """None where nothing applies."""
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
    """The reason for `no noise known` or `not comparable`."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """B against A."""

    a: str
    """Runs, requests, scenario and URL of the side, in words."""
    b: str
    metrics: tuple[Metric, ...]
    notes: tuple[str, ...]
    """Differences beside the figures, and how the intervals were made, in sentences."""
    invalid: tuple[str, ...]
    """Why the figures cannot be trusted; empty if they can."""

    @property
    def words(self) -> str:
        """All of it in a sentence or two."""
        by: dict[Word, list[str]] = {}
        for metric in self.metrics:
            by.setdefault(metric.word, []).append(metric.name)
        changed: tuple[Word, ...] = ("better", "worse")
        others: tuple[Word, ...] = ("within the noise", "no noise known", "not comparable")
        sentence = "; ".join(f"B is {word} in {', '.join(by[word])}" for word in changed if word in by)
        sentence = sentence or "Nothing is known to differ between A and B by more than noise"
        rest = ", ".join(f"{len(by[word])} {word}" for word in others if word in by)
        sentence = f"{sentence} ({rest})." if rest else f"{sentence}."
        if self.invalid:
            return f"These numbers cannot be trusted: {'; '.join(self.invalid)}. {sentence}"
        return sentence


@dataclass(frozen=True, slots=True)
class _Measure:
    name: str
    unit: Unit
    higher_is_better: bool
    rows: Callable[[Columns, Summary], tuple[Floats, Floats]]
    """Observations and their times in seconds; for a ratio, two columns: numerator and denominator."""
    share: float | None = None
    """The figure is the percentile at this share, 0 to 1; None: a ratio of two sums."""

    def figure(self, rows: Floats) -> float | None:
        """The figure of these rows, which rise for a percentile; None where there are none."""
        if self.share is not None:
            return percentile(rows, self.share) if len(rows) else None
        above, below = rows.sum(axis=0)
        return float(above / below) if below > 0 else None


def _pairs(above: Floats, below: Floats | float = 1.0) -> Floats:
    return np.stack(np.broadcast_arrays(above, below), axis=1)


def _tokens(columns: Columns, summary: Summary) -> tuple[Floats, Floats]:
    """Tokens of each piece, and the seconds of the run as a thousand rows."""
    span_s = summary.rates.span_s
    rows = np.concatenate((_pairs(columns.piece_tokens, 0.0), _pairs(np.zeros(1000), span_s / 1000)))
    return rows, np.concatenate((columns.piece_at_s, np.linspace(0.0, span_s, 1000)))


def _measures(cold: bool) -> Iterator[_Measure]:
    def of(name: str, rows: Callable[[Columns], tuple[Floats, Floats]], *shares: float) -> Iterator[_Measure]:
        for share in shares:
            full = f"{name} max" if share == 1.0 else f"{name} P{100 * share:g}"
            yield _Measure(full, "s", False, lambda columns, _: rows(columns), share)

    def applying(values: Floats, at_s: Floats) -> tuple[Floats, Floats]:
        return applicable(values), at_s[~np.isnan(values)]

    yield from of("TTFT", lambda c: (c.ttft_s, c.at_s), 0.50, 0.95, 0.99)
    if cold:
        yield from of("warm TTFT", lambda c: (c.ttft_s[~c.cold], c.at_s[~c.cold]), 0.50, 0.95, 0.99)
    yield from of("ITL", lambda c: (c.gap_s, c.gap_at_s), 0.50, 0.95, 0.99)
    yield from of("hundred tokens", lambda c: applying(c.hundred_s, c.at_s), 0.50, 0.95)
    yield from of("end to end", lambda c: applying(c.e2e_s, c.at_s), 0.50, 0.95)
    yield from of("cold wait", lambda c: applying(c.cold_wait_s, c.at_s), 0.50, 1.0)
    yield _Measure("output tokens", "per_s", True, _tokens)
    yield _Measure("error rate", "share", False, lambda c, _: (_pairs(c.error.astype(float)), c.at_s))
    yield _Measure(
        "cached prompts", "share", True, lambda c, _: (_pairs(c.cached_tokens, c.prompt_tokens), c.at_s)
    )


_Side = Sequence[tuple[Columns, Summary]]
"""The runs of one side."""
Ints = npt.NDArray[np.int64]


def compare(a: Sequence[Run], b: Sequence[Run]) -> Comparison:
    """Compare the runs `b` with the runs `a`, all of one scenario.

    Raises:
        ValueError: a side without runs, or with a run whose scenario is not one.
    """
    for name, runs in (("A", a), ("B", b)):
        if not runs:
            raise ValueError(f"side {name} has 0 runs: at least 1 is needed")
    sides = [[(Columns.of(run.records), summarize(run)) for run in side] for side in (a, b)]
    runs = [*a, *b]
    unlike = [
        key for key in (*_ARRIVALS, "requests") if len({str(run.scenario.get(key)) for run in runs}) > 1
    ]
    paired = not set(unlike) & set(_ARRIVALS)
    metrics = tuple(_metrics(sides, paired))
    invalid = [f"the runs were asked different things: they differ in {', '.join(unlike)}"] if unlike else []
    for name, side, known in (("A", a, sides[0]), ("B", b, sides[1])):
        for place, (run, (_, summary)) in enumerate(zip(side, known, strict=True), 1):
            invalid += [f"run {place} of {name} is invalid: {why}" for why in judge(run, summary).invalid]
    notes = (*_differences(a, b), *_method(min(len(a), len(b)) > 1, paired, metrics))
    return Comparison(_words(a), _words(b), metrics, notes, tuple(invalid))


def _words(runs: Sequence[Run]) -> str:
    requests = count(sum(len(run.records) for run in runs), "request")
    name = plain(str(runs[0].scenario.get("name", "")))
    return f"{count(len(runs), 'run')}, {requests}, of {name} at {plain(runs[0].url)}"


def _metrics(sides: Sequence[_Side], paired: bool) -> Iterator[Metric]:
    """All figures that apply to something on either side, in the order in which they are read."""
    both = [columns for side in sides for columns, _ in side]
    # Blocks have equal numbers of requests, not equal times: a run may end with minutes of silence.
    at_s = np.concatenate([columns.at_s for columns in both])
    edges = np.quantile(at_s, np.arange(1, BLOCKS) / BLOCKS) if len(at_s) else np.zeros(0)
    for measure in _measures(cold=any(columns.cold.any() for columns in both)):
        if (metric := _measured(measure, sides, edges, paired)) is not None:
            yield metric
    for name, unit, key in (("GPU-seconds", "gpu_s", "gpu_seconds"), ("cost", "usd", "dollars")):
        known = [[getattr(summary, key) for _, summary in side] for side in sides]
        if any(any(values) for values in known):
            means = [None if None in values else float(np.mean(values)) for values in known]
            yield _metric(name, unit, False, means, known if min(map(len, known)) > 1 else _ONE_FIGURE)


def _measured(measure: _Measure, sides: Sequence[_Side], edges: Floats, paired: bool) -> Metric | None:
    figures, alone, pools = [], [], []
    for side in sides:
        rows, blocks = [], []
        for columns, summary in side:
            values, times = measure.rows(columns, summary)
            order = np.argsort(values) if measure.share is not None else slice(None)
            rows.append(values[order])
            blocks.append(np.searchsorted(edges, times, side="right")[order])
        values, block = np.concatenate(rows), np.concatenate(blocks)
        order = np.argsort(values) if measure.share is not None else slice(None)
        pools.append((values[order], block[order]))
        figures.append(measure.figure(values[order]))
        alone.append([measure.figure(one) for one in rows])
    noise: Sequence[Sequence[float | None]] | str = alone
    jackknife = min(map(len, alone)) < 2
    if figures == [None, None]:
        return None
    if measure.share == 1.0:
        noise = _LARGEST
    elif jackknife and None not in figures:
        spread = min(
            _spread(measure, rows, block, figure)
            for (rows, block), figure in zip(pools, figures, strict=True)
        )
        without = [[measure.figure(rows[block != one]) for one in range(BLOCKS)] for rows, block in pools]
        noise = without if spread >= FEWEST_BLOCKS else _ONE_STRETCH
    return _metric(measure.name, measure.unit, measure.higher_is_better, figures, noise, jackknife, paired)


def _spread(measure: _Measure, rows: Floats, block: Ints, figure: float | None) -> float:
    """Over how many blocks the deciding observations are spread: Kish's (sum n)^2 / sum n^2.

    Thirty requests of one burst count as one.
    """
    weights = rows >= (figure or 0.0) if measure.share is not None else rows[:, 1]
    held = np.bincount(block, weights, BLOCKS)
    return float(held.sum() ** 2 / np.square(held).sum()) if held.any() else 0.0


def _metric(
    name: str,
    unit: Unit,
    higher_is_better: bool,
    figures: Sequence[float | None],
    noise: Sequence[Sequence[float | None]] | str,
    jackknife: bool = False,
    paired: bool = False,
) -> Metric:
    """`noise` has the figures of each run, or without each block, of both sides; or the reason why it is
    unknown."""
    a, b = figures
    difference = relative = low = high = None
    word: Word = "not comparable"
    why = noise if isinstance(noise, str) else ""
    if a is None or b is None:
        why = f"{'A' if a is None else 'B'} has none"
    elif math.isinf(a) and math.isinf(b):
        why = "it never came on either side"
    else:
        word = "no noise known"
        difference = 0.0 if math.isclose(a, b) else b - a  # equal figures may be summed in another order
        relative = difference / a if a and math.isfinite(difference) else None
        if not isinstance(noise, str):
            found = _interval(difference, noise, jackknife, paired)
            if found is None:
                why = _SOMETIMES
            else:
                low, high = found
                word = "better" if (low > 0) == higher_is_better else "worse"
                word = "within the noise" if low <= 0 <= high else word
    return Metric(name, unit, higher_is_better, a, b, difference, relative, low, high, word, why)


def _interval(
    difference: float, noise: Sequence[Sequence[float | None]], jackknife: bool, paired: bool
) -> tuple[float, float] | None:
    """The 95 % interval; None where a side has figures both finite and not."""
    a, b = (np.array([math.nan if one is None else one for one in side]) for side in noise)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        always = all(np.isinf(side).all() or np.isfinite(side).all() for side in (a, b))
        return (difference, difference) if always and math.isinf(difference) else None
    if jackknife:
        scale = (len(a) - 1) ** 2 / len(a)
        # The same requests come in the same block of both sides, so a block's own load cancels.
        variances = [scale * np.var(b - a, ddof=1)] if paired else [scale * np.var(s, ddof=1) for s in (a, b)]
        freedom = len(a) - 1.0
    else:
        variances = [np.var(side, ddof=1) / len(side) for side in (a, b)]
        parts = sum(var**2 / (len(side) - 1) for var, side in zip(variances, (a, b), strict=True))
        freedom = sum(variances) ** 2 / parts if parts else 1.0
    half = float(np.interp(1 / freedom, *_STUDENT_95)) * math.sqrt(sum(variances))
    return difference - half, difference + half


def _differences(a: Sequence[Run], b: Sequence[Run]) -> Iterator[str]:
    began = {(run.scenario_hash, run.url, run.began) for run in a}
    same = sum((run.scenario_hash, run.url, run.began) in began for run in b)
    if same:
        yield f"{count(same, 'run')} of B {'is' if same == 1 else 'are'} on A too."
    runs = [*a, *b]
    keys = dict.fromkeys(key for run in runs for key in run.scenario if key not in ("name", "about", "seed"))
    unlike = [key for key in keys if any(run.scenario.get(key) != runs[0].scenario.get(key) for run in runs)]
    if unlike:
        yield f"The scenarios are not the same: they differ in {', '.join(unlike)}."
    facts = [[_facts(run) for run in side] for side in (a, b)]
    changes = []
    for key in dict.fromkeys(key for side in facts for known in side for key in known):
        ours, theirs = (
            ", ".join(dict.fromkeys(known.get(key, "unknown") for known in side)) for side in facts
        )
        if ours != theirs:
            changes.append(f"{key} is {ours} on A and {theirs} on B")
    if changes:
        more = f"; and {len(changes) - _MOST_NAMED} more" if len(changes) > _MOST_NAMED else ""
        yield f"The runs also differ: {'; '.join(changes[:_MOST_NAMED])}{more}."


def _facts(run: Run) -> Mapping[str, Any]:
    known = {"seed": str(run.scenario.get("seed")), "URL": run.url, **run.machine, **run.versions}
    known.pop("load before", None)  # no two runs share it
    return known


def _method(several: bool, paired: bool, metrics: Sequence[Metric]) -> Iterator[str]:
    if several:
        yield "The intervals are 95 % ones. They come from the spread of the runs of each side."
    else:
        yield (
            f"The intervals are 95 % ones. They come from leaving out each of {BLOCKS} stretches of time in "
            "turn. They do not include the noise between runs, which only several runs per side show."
        )
        if not paired:
            yield "The sides have different arrivals, so their noise was taken as independent."
        unknown = sum(metric.word == "no noise known" for metric in metrics)
        if unknown:
            yield (
                f"For {count(unknown, 'figure')}, one run per side cannot tell a difference from noise: "
                "repeat the runs, and compare several with several."
            )
    judged = sum(metric.low is not None for metric in metrics)
    if judged > 1:
        yield (
            f"About one in twenty of the {count(judged, 'figure')} with an interval is called better or "
            "worse even where nothing differs."
        )
