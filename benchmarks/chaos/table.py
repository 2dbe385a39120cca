"""The tables of a run, in Markdown, so that a terminal and a document show the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.chaos.verdicts import GOALS, Row

HEADERS = (
    "killed or stopped", "whole", "continued", "told", "cut", "hung", "open", "refused",
    "longest pause, s", "no answer, s", "slowest, s", "failed",
    "/ready wrong, s", "/ready slowest, s", "/health P50/P99/max, ms",
    "engines restarted", "back after, s", "goals",
)  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    """A line for each event."""
    return markdown(HEADERS, [_cells(row) for row in rows])


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
    return markdown(("goal", "held"), lines)


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


def markdown(headers: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table whose columns are aligned in plain text too."""
    widths = [max(map(len, column)) for column in zip(headers, *lines, strict=True)]
    rule = ["-" * width for width in widths]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in (headers, rule, *lines)
    )
