"""The result of a run: its tables in Markdown, and a JSON document that gives them again."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.chaos.memory import Growth, growth
from benchmarks.chaos.observed import Look, Trace
from benchmarks.chaos.processes import strength
from benchmarks.chaos.verdicts import GOALS, Row, rows
from benchmarks.common import markdown

HEADERS = (
    "killed or stopped", "whole", "continued", "told", "cut", "hung", "open", "refused",
    "longest pause, s", "no answer, s", "slowest, s", "failed",
    "/ready wrong, s", "/ready slowest, s", "/health P50/P99/max, ms",
    "engines restarted", "back after, s", "goals",
)  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    """A line for each event."""
    return markdown.table(HEADERS, [_cells(row) for row in rows], numbers=False)


def notes(rows: Sequence[Row]) -> list[str]:
    """What became of the server, where something did."""
    return [f"{_name(row)}: {row.note}" for row in rows if row.note]


def goals(rows: Sequence[Row]) -> str:
    """How many events kept each goal."""
    lines = []
    for goal in GOALS:
        missed = [_name(row) for row in rows if goal in row.missed]
        verdict = "PASS" if not missed else f"MISS in {len(missed)} of {len(rows)}: {', '.join(missed)}"
        lines.append([_GOALS[goal], verdict])
    return markdown.table(("goal", "held"), lines, numbers=False)


_OUTCOMES = ("whole", "continued", "told", "cut", "hung", "open", "refused")
_GOALS = {
    "cut": "streams are cut only where the client's own connection was to the dead process",
    "answers": "no new request waits more than 2 s (5 s: a hung engine or ingress) while an engine lives",
    "ready": "/ready tells no state that is older than 2 s (5 s: hung), and answers within 1 s (5 s: hung)",
    "health": "/health within 50 ms at P99",
    "engines": "no engine is started anew but the one attacked",
}


def _name(row: Row) -> str:
    return f"{row.role} {row.node}".strip() + (" (SIGSTOP)" if row.signal == "stop" else "")


def _cells(row: Row) -> list[str]:
    streams: Mapping[str, int] = row.streams
    exempt = "" if row.unanswered_all_s - row.unanswered_s < 0.05 else f" ({row.unanswered_all_s:.1f} in all)"
    return [
        _name(row),
        *(str(streams.get(outcome, 0)) for outcome in _OUTCOMES),
        f"{row.longest_pause_s:.1f}",
        f"{row.unanswered_s:.1f}{exempt}",
        f"{row.slowest_s:.1f}",
        str(row.failed),
        f"{row.ready_wrong_s:.1f}",
        f"{row.ready_slowest_s:.1f}",
        f"{row.health_p50_s * 1e3:.0f}/{row.health_p99_s * 1e3:.0f}/{row.health_max_s * 1e3:.0f}",
        str(row.engines_restarted),
        _back(row),
        f"MISS: {', '.join(row.missed)}" if row.missed else "PASS",
    ]


def _back(row: Row) -> str:
    if row.back_s is not None:
        return f"{row.back_s:.1f}"
    return "no" if row.note else "–"  # noqa: RUF001 not watched: at random the next attack does not wait


_VERSION = 1


def document(trace: Trace, about: Mapping[str, Any]) -> dict[str, Any]:
    """Everything seen. Times are of one monotonic clock; a row's `at_s` counts from the first look."""
    return {
        "version": _VERSION,
        **about,
        "rows": [asdict(row) for row in rows(trace)],
        "memory": [asdict(one) for one in growth(trace.memory)],
        "events": [asdict(event) for event in trace.events],
        "streams": [asdict(stream) for stream in trace.streams],
        "answers": [asdict(probe) for probe in trace.answers],
        "health": [asdict(probe) for probe in trace.healths],
        "ready": [asdict(ready) for ready in trace.readies],
        "processes": _changes(sorted(trace.looks, key=lambda look: look.at_s)),
        "memory_samples": [asdict(one) for one in trace.memory],
    }


def _changes(looks: Sequence[Look]) -> list[dict[str, Any]]:
    """Each look that differs from the one before."""
    changes: list[dict[str, Any]] = []
    for look in looks:
        found = [[one.role, one.pid, one.group, one.node, one.runs] for one in look.processes]
        if not changes or found != changes[-1]["processes"]:
            changes.append({"at_s": look.at_s, "running": strength(look), "processes": found})
    return changes


def read_results(path: Path) -> tuple[list[Row], list[Growth]]:
    """The rows of a result. Raises ValueError for a file that is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["version"] != _VERSION:
            raise ValueError(f"version {found['version']}, not {_VERSION}")
        return [Row(**row) for row in found["rows"]], [Growth(**one) for one in found["memory"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--show = {path}: no result of a chaos run ({error})") from None
