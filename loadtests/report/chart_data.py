"""The data of a load test's charts: series over time, and distributions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loadtests.columns import Columns
from loadtests.drawing.json_numbers import short
from loadtests.percentiles import Floats, Percentiles
from loadtests.record import ERRORS, OUTCOMES, Run, Sample
from loadtests.report.document import plain
from loadtests.summary import Summary

MOST_LOOKS = 3000
"""Twice the pixels of a wide page: more points would not be visible."""
MOST_CURVE_POINTS = 240
PERCENTILES = ("p50", "p95", "p99")
REPLICAS = ("wanted", "target", "ready", "starting", "pending", "draining")
QUEUES = ("held", "waiting", "running")
_DIGITS = 5


def window_series(run: Run, summary: Summary) -> dict[str, Any]:
    """Return, for each window, rates, latency percentiles in seconds (None without latencies), and errors."""
    windows = summary.windows
    starts = np.array([window.start_s for window in windows])
    spans = np.array([window.end_s - window.start_s for window in windows])
    answered = _per_window(starts, [r.ended_s for r in run.records if r.outcome == "answered"])
    return {
        "start_s": plain(starts),
        "end_s": [window.end_s for window in windows],
        "requests": [window.arrivals for window in windows],
        "offered_rps": [short(window.rate_rps, _DIGITS) for window in windows],
        "answered_rps": [short(value, _DIGITS) for value in (answered / spans).tolist()],
        "open": [short(window.open_streams, _DIGITS) for window in windows],
        "ttft": _percentiles([window.ttft_s for window in windows]),
        "itl": _percentiles([window.itl_s for window in windows]),
        "errors": {
            outcome: _per_window(starts, [r.at_s for r in run.records if r.outcome == outcome]).tolist()
            for outcome in OUTCOMES
            if outcome in ERRORS
        },
    }


def replica_series(run: Run) -> list[dict[str, Any]]:
    """Return each model's replica counts over time; None where the server did not report a count."""
    return [
        {"model": model, **_thinned(_looks(samples, REPLICAS))}
        for model, samples in _by_model(run.samples).items()
    ]


def queue_series(run: Run) -> dict[str, Any]:
    """Return the requests of all models held, waiting and running; a sample holds until its model's next."""
    models = [_looks(samples, QUEUES) for samples in _by_model(run.samples).values()]
    at = np.unique(np.concatenate([looks["at_s"] for looks in models])) if models else np.zeros(0)
    total = {name: np.full(len(at), np.nan) for name in QUEUES}
    for looks in models:
        last = np.searchsorted(looks["at_s"], at, side="right") - 1
        for name in QUEUES:
            value = np.where(last >= 0, looks[name][np.maximum(last, 0)], np.nan)
            both = np.where(np.isnan(value), 0.0, value) + np.where(np.isnan(total[name]), 0.0, total[name])
            total[name] = np.where(np.isnan(value) & np.isnan(total[name]), np.nan, both)
    return _thinned({"at_s": at, **total})


def distributions(columns: Columns) -> dict[str, list[dict[str, Any]]]:
    """Return the cumulative distributions of TTFT and ITL: seconds, and the share that was as fast."""
    ttft = columns.ttft_s
    cold = columns.cold
    parts = [("all", ttft), ("warm", ttft[~cold]), ("held", ttft[cold])] if cold.any() else [("all", ttft)]
    return {
        "ttft": [{"name": name, **curve(values)} for name, values in parts if len(values)],
        "itl": [{"name": "all", **curve(columns.gap_s)}] if len(columns.gap_s) else [],
    }


def curve(values: Floats, most: int = MOST_CURVE_POINTS) -> dict[str, Any]:
    """Return the distribution of `values` at shares that get denser towards 1, where the percentiles are.

    The i-th of n values in rising order, from 0, lies at the share (i + 0.5) / n.
    """
    ordered = np.sort(values)
    count = len(ordered)
    # Evenly spaced in the logarithm of what is slower, which is how the chart draws shares.
    wanted = (1 - 10 ** -np.linspace(0, np.log10(2 * count), most)) * count - 0.5
    places = np.unique(np.clip(np.round(wanted), 0, count - 1).astype(np.int64))
    places = places[np.isfinite(ordered[places])]
    return {
        "count": count,
        "never": int(np.count_nonzero(np.isinf(ordered))),
        "value_s": [short(value, _DIGITS) for value in ordered[places].tolist()],
        "share": [short(share, 7) for share in ((places + 0.5) / count).tolist()],
    }


def _per_window(starts: Floats, times: Sequence[float]) -> Floats:
    place = np.clip(np.searchsorted(starts, times, side="right") - 1, 0, None)
    return np.bincount(place, minlength=len(starts)).astype(np.float64)


def _percentiles(found: Sequence[Percentiles | None]) -> dict[str, list[Any]]:
    return {name: [plain(each and _cut(getattr(each, name))) for each in found] for name in PERCENTILES}


def _cut(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _by_model(samples: Sequence[Sample]) -> Mapping[str, list[Sample]]:
    models: dict[str, list[Sample]] = {}
    for sample in sorted(samples, key=lambda sample: sample.at_s):
        models.setdefault(sample.model, []).append(sample)
    return dict(sorted(models.items()))


def _looks(samples: Sequence[Sample], names: Sequence[str]) -> dict[str, Floats]:
    at = np.array([sample.at_s for sample in samples], dtype=np.float64)
    counts = {name: np.array([getattr(s, name) for s in samples], dtype=np.float64) for name in names}
    return {"at_s": at, **{name: np.where(values < 0, np.nan, values) for name, values in counts.items()}}


def _thinned(looks: Mapping[str, Floats]) -> dict[str, list[Any]]:
    """Keep the largest of the values that are drawn as one, because readers look for short peaks."""
    count = len(looks["at_s"])
    begins = np.arange(0, count, -(-count // MOST_LOOKS) if count else 1)
    out = {}
    for name, values in looks.items():
        kept = values[begins] if name == "at_s" else np.fmax.reduceat(values, begins) if count else values
        out[name] = [short(value, 9) for value in kept.tolist()]
    return out
