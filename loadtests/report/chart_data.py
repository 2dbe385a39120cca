"""Data of the page's charts: series over time, distributions, and single requests."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from loadtests.columns import Columns, Floats, Percentiles
from loadtests.drawing.json_numbers import short
from loadtests.record import ERRORS, OUTCOMES, Record, Run, Sample
from loadtests.report.document import plain
from loadtests.summary import Summary
from serve_app.cli.formats import plain as one_line

MOST_LOOKS = 3000
"""Twice the pixels of a wide page: more points would not be visible."""
MOST_CURVE_POINTS = 240
MOST_POINTS = 5000
MOST_HOLDS = 40
"""Bars that are still distinct on one screen."""
_MOST_ERRORS = 4000
_LONGEST_ERROR = 200
_STRETCHES = 400
"""Parts of a run whose slowest and fastest requests are always drawn."""
PERCENTILES = ("p50", "p95", "p99")
REPLICAS = ("wanted", "target", "ready", "starting", "pending", "draining")
QUEUES = ("held", "waiting", "running")
_DIGITS = 5

Places = npt.NDArray[np.int64]


def window_series(run: Run, summary: Summary) -> dict[str, Any]:
    """By window: rates, latency percentiles in seconds (None without latencies), and errors."""
    windows = summary.windows
    starts = np.array([window.start_s for window in windows])
    spans = np.array([window.end_s - window.start_s for window in windows])

    def count(times: Iterable[float]) -> Floats:
        place = np.clip(np.searchsorted(starts, list(times), side="right") - 1, 0, None)
        return np.bincount(place, minlength=len(starts)).astype(np.float64)

    def percentiles(found: Sequence[Percentiles | None]) -> dict[str, list[Any]]:
        def value(one: Percentiles | None, name: str) -> float | None:
            return float(f"{getattr(one, name):.{_DIGITS}g}") if one else None

        return {name: [plain(value(one, name)) for one in found] for name in PERCENTILES}

    answered = count(r.ended_s for r in run.records if r.outcome == "answered")
    return {
        "start_s": plain(starts),
        "end_s": [window.end_s for window in windows],
        "requests": [window.arrivals for window in windows],
        "offered_rps": [short(window.rate_rps, _DIGITS) for window in windows],
        "answered_rps": [short(value, _DIGITS) for value in (answered / spans).tolist()],
        "open": [short(window.open_streams, _DIGITS) for window in windows],
        "ttft": percentiles([window.ttft_s for window in windows]),
        "itl": percentiles([window.itl_s for window in windows]),
        "errors": {
            outcome: count(r.at_s for r in run.records if r.outcome == outcome).tolist()
            for outcome in OUTCOMES
            if outcome in ERRORS
        },
    }


def replica_series(run: Run) -> list[dict[str, Any]]:
    """Each model's replica counts over time; None where the server did not report a count."""
    return [
        {"model": model, **_thin(_looks(samples, REPLICAS))}
        for model, samples in _by_model(run.samples).items()
    ]


def queue_series(run: Run) -> dict[str, Any]:
    """The queued and running requests of all models; a sample counts until its model's next."""
    models = [_looks(samples, QUEUES) for samples in _by_model(run.samples).values()]
    at = np.unique(np.concatenate([looks["at_s"] for looks in models])) if models else np.zeros(0)
    total = {name: np.full(len(at), np.nan) for name in QUEUES}
    for looks in models:
        last = np.searchsorted(looks["at_s"], at, side="right") - 1
        for name in QUEUES:
            value = np.where(last >= 0, looks[name][np.maximum(last, 0)], np.nan)
            unknown = np.isnan(value) & np.isnan(total[name])
            total[name] = np.where(unknown, np.nan, np.nan_to_num(value) + np.nan_to_num(total[name]))
    return _thin({"at_s": at, **total})


def distributions(columns: Columns) -> dict[str, list[dict[str, Any]]]:
    """The cumulative distributions of TTFT and ITL: seconds, and the share that was as fast."""
    ttft, cold = columns.ttft_s, columns.cold
    parts = [("all", ttft), ("warm", ttft[~cold]), ("held", ttft[cold])] if cold.any() else [("all", ttft)]
    return {
        "ttft": [{"name": name, **curve(values)} for name, values in parts if len(values)],
        "itl": [{"name": "all", **curve(columns.gap_s)}] if len(columns.gap_s) else [],
    }


def curve(values: Floats, most: int = MOST_CURVE_POINTS) -> dict[str, Any]:
    """The distribution of `values` at shares that get denser towards 1, where the percentiles are.

    The i-th of n values in rising order, from 0, lies at the share (i + 0.5) / n.
    """
    ordered = np.sort(values)
    count = len(ordered)
    # Evenly spaced in the logarithm of the rest, which is how the chart draws shares.
    wanted = (1 - 10 ** -np.linspace(0, np.log10(2 * count), most)) * count - 0.5
    places = np.unique(np.clip(np.round(wanted), 0, count - 1).astype(np.int64))
    places = places[np.isfinite(ordered[places])]
    return {
        "count": count,
        "never": int(np.count_nonzero(np.isinf(ordered))),
        "value_s": [short(value, _DIGITS) for value in ordered[places].tolist()],
        "share": [short(share, 7) for share in ((places + 0.5) / count).tolist()],
    }


def _by_model(samples: Sequence[Sample]) -> Mapping[str, list[Sample]]:
    models: dict[str, list[Sample]] = {}
    for sample in sorted(samples, key=lambda sample: sample.at_s):
        models.setdefault(sample.model, []).append(sample)
    return dict(sorted(models.items()))


def _looks(samples: Sequence[Sample], names: Sequence[str]) -> dict[str, Floats]:
    at = np.array([sample.at_s for sample in samples], dtype=np.float64)
    counts = {name: np.array([getattr(s, name) for s in samples], dtype=np.float64) for name in names}
    return {"at_s": at, **{name: np.where(values < 0, np.nan, values) for name, values in counts.items()}}


def _thin(looks: Mapping[str, Floats]) -> dict[str, list[Any]]:
    """Keep the largest of the values that are drawn as one, because readers look for short peaks."""
    count = len(looks["at_s"])
    begins = np.arange(0, count, -(-count // MOST_LOOKS) if count else 1)
    out = {}
    for name, values in looks.items():
        kept = values[begins] if name == "at_s" else np.fmax.reduceat(values, begins) if count else values
        out[name] = [short(value, 9) for value in kept.tolist()]
    return out


def points(records: Sequence[Record], columns: Columns) -> dict[str, Any]:
    """Requests by intended time and TTFT, at most `MOST_POINTS`, as columns.

    Errors are kept before others, then the slowest and the fastest of each stretch, then every n-th.
    """
    places = _choose(columns)
    chosen = [records[place] for place in places.tolist()]
    kinds = {name: at for at, name in enumerate(dict.fromkeys(record.kind for record in records))}
    models = {name: at for at, name in enumerate(dict.fromkeys(record.model for record in records))}
    return {
        "of": len(records),
        "kinds": list(kinds),
        "models": list(models),
        "index": [record.index for record in chosen],
        "at_s": [short(record.at_s, 9) for record in chosen],
        "ttft_s": [plain(value) for value in np.round(columns.ttft_s[places], 4).tolist()],
        "outcome": [record.outcome for record in chosen],
        "cold": [int(cold) for cold in columns.cold[places].tolist()],
        "kind": [kinds[record.kind] for record in chosen],
        "model": [models[record.model] for record in chosen],
        "pieces": [len(record.pieces_s) for record in chosen],
        "ended_s": [short(record.ended_s, 9) for record in chosen],
        "errors": {
            str(at): one_line(
                f"{record.status}: {record.error}" if record.status else record.error, _LONGEST_ERROR
            )
            for at, record in enumerate(chosen)
            if record.error or record.status >= 400
        },
    }


def _choose(columns: Columns) -> Places:
    count = len(columns.at_s)
    if count <= MOST_POINTS:
        return np.arange(count)
    came = np.flatnonzero(np.isfinite(columns.ttft_s))
    kept = _spaced(np.flatnonzero(columns.error), _MOST_ERRORS)
    if len(came):
        edges = np.linspace(columns.at_s[came].min(), columns.at_s[came].max(), _STRETCHES + 1)[1:-1]
        stretch = np.searchsorted(edges, columns.at_s[came], side="right")
        order = np.lexsort((columns.ttft_s[came], stretch))
        first = np.flatnonzero(np.diff(stretch[order], prepend=-1))
        last = np.append(first[1:], len(order)) - 1
        kept = np.union1d(kept, came[order[np.concatenate((first, last))]])
    others = np.setdiff1d(np.flatnonzero(~columns.error), kept)
    return np.union1d(kept, _spaced(others, MOST_POINTS - len(kept)))


def _spaced(places: Places, most: int) -> Places:
    if len(places) <= most:
        return places
    return places[np.round(np.linspace(0, len(places) - 1, most)).astype(np.int64)]


def holds(records: Sequence[Record], columns: Columns) -> dict[str, Any]:
    """The phases of the waits of cold requests, in the order of their intended times.

    More than `MOST_HOLDS` are thinned evenly by the length of the wait; the longest and the shortest stay.
    """
    cold = np.flatnonzero(columns.cold)
    waits = np.array([records[place].cold_wait_s for place in cold.tolist()])
    ranked = _spaced(cold[np.argsort(waits, kind="stable")], MOST_HOLDS)
    bars = [_hold(records[place]) for place in sorted(ranked.tolist(), key=lambda p: (records[p].at_s, p))]
    return {"of": len(cold), "bars": bars}


def _hold(record: Record) -> dict[str, Any]:
    """A wait by phase, in seconds from the intended time. The phase is "" before the first comment."""
    ended = record.first_s if record.first_s is not None else record.ended_s
    released = min(record.at_s + record.cold_wait_s, ended)
    marks = [(record.at_s, ""), *((at, phase) for at, phase in record.phases if at < released)]
    ends = [*(at for at, _ in marks[1:]), released]

    def since(at_s: float) -> float | int | None:
        return short(at_s - record.at_s, 6)

    return {
        "index": record.index,
        "at_s": short(record.at_s, 9),
        "outcome": record.outcome,
        "model": record.model,
        "wait_s": short(record.cold_wait_s, 6),
        "ended_s": since(ended),
        "answered": record.first_s is not None,
        "parts": [
            {"phase": one_line(phase), "from_s": since(start), "to_s": since(end)}
            for (start, phase), end in zip(marks, ends, strict=True)
            if end > start
        ],
    }
