"""The result of a run as a JSON document, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.chaos.memory import Growth, growth
from benchmarks.chaos.observed import Look, Trace
from benchmarks.chaos.processes import strength
from benchmarks.chaos.verdicts import Row, rows

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
        found = [[one.role, one.pid, one.parent, one.node, one.runs] for one in look.processes]
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
