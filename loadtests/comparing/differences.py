"""In what, beside their figures, runs differ that are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from loadtests.record import Run
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
