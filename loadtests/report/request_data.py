"""Single requests for the page: each as a point, and the phases of the waits of held requests."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from loadtests.columns import Columns
from loadtests.drawing.json_numbers import short
from loadtests.record import Record
from loadtests.report.document import plain
from serve_app.cli.formats import plain as one_line

MOST_POINTS = 5000
MOST_HOLDS = 40
"""Bars that can still be told apart on one screen."""
_MOST_ERRORS = 4000
_LONGEST_ERROR = 200
_EXTREMES = 400
"""Parts of a run whose slowest and fastest requests are always drawn."""

Places = npt.NDArray[np.int64]


def points(records: Sequence[Record], columns: Columns) -> dict[str, Any]:
    """Return requests by intended time and TTFT, at most `MOST_POINTS`, as columns.

    Errors are kept before others, then the slowest and the fastest of each stretch, then every n-th.
    """
    places = _chosen(columns)
    chosen = [records[place] for place in places.tolist()]
    kinds, models = _names(record.kind for record in records), _names(record.model for record in records)
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
            str(at): _error(record)
            for at, record in enumerate(chosen)
            if record.error or record.status >= 400
        },
    }


def holds(records: Sequence[Record], columns: Columns) -> dict[str, Any]:
    """Return the phases of the waits of held requests, in the order of their intended times.

    More than `MOST_HOLDS` are thinned evenly by the length of the wait; the longest and the shortest stay.
    """
    cold = np.flatnonzero(columns.cold)
    waits = np.array([records[place].cold_wait_s for place in cold.tolist()])
    ranked = cold[np.argsort(waits, kind="stable")]
    if len(ranked) > MOST_HOLDS:
        ranked = ranked[np.round(np.linspace(0, len(ranked) - 1, MOST_HOLDS)).astype(np.int64)]
    bars = [_hold(records[place]) for place in sorted(ranked.tolist(), key=lambda p: (records[p].at_s, p))]
    return {"of": len(cold), "bars": bars}


def _hold(record: Record) -> dict[str, Any]:
    """Return a wait by phase, in seconds from the intended time. The phase is "" before the first comment."""
    ended = record.first_s if record.first_s is not None else record.ended_s
    released = min(record.at_s + record.cold_wait_s, ended)
    marks = [(record.at_s, ""), *((at, phase) for at, phase in record.phases if at < released)]
    ends = [*(at for at, _ in marks[1:]), released]
    parts = [
        {
            "phase": one_line(phase),
            "from_s": short(start - record.at_s, 6),
            "to_s": short(end - record.at_s, 6),
        }
        for (start, phase), end in zip(marks, ends, strict=True)
        if end > start
    ]
    return {
        "index": record.index,
        "at_s": short(record.at_s, 9),
        "outcome": record.outcome,
        "model": record.model,
        "wait_s": short(record.cold_wait_s, 6),
        "ended_s": short(ended - record.at_s, 6),
        "answered": record.first_s is not None,
        "parts": parts,
    }


def _chosen(columns: Columns) -> Places:
    count = len(columns.at_s)
    if count <= MOST_POINTS:
        return np.arange(count)
    errors = _evenly(np.flatnonzero(columns.error), _MOST_ERRORS)
    extremes = _extremes(columns)
    kept = np.union1d(errors, extremes)
    others = np.setdiff1d(np.flatnonzero(~columns.error), kept)
    return np.union1d(kept, _evenly(others, MOST_POINTS - len(kept)))


def _extremes(columns: Columns) -> Places:
    """Return the slowest and the fastest answered request of each part of the run."""
    came = np.flatnonzero(np.isfinite(columns.ttft_s))
    if not len(came):
        return came
    at, ttft = columns.at_s[came], columns.ttft_s[came]
    span = max(float(at.max() - at.min()), 1e-9)
    stretch = np.minimum(((at - at.min()) / span * _EXTREMES).astype(np.int64), _EXTREMES - 1)
    order = np.lexsort((ttft, stretch))
    first = np.flatnonzero(np.diff(stretch[order], prepend=-1))
    last = np.append(first[1:], len(order)) - 1
    return np.union1d(came[order[first]], came[order[last]])


def _evenly(places: Places, most: int) -> Places:
    if len(places) <= most:
        return places
    return places[np.round(np.linspace(0, len(places) - 1, most)).astype(np.int64)]


def _names(names: Any) -> dict[str, int]:
    return {name: at for at, name in enumerate(dict.fromkeys(names))}


def _error(record: Record) -> str:
    status = f"{record.status}: " if record.status else ""
    return one_line(f"{status}{record.error}", _LONGEST_ERROR)
