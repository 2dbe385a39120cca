"""A comparison on a terminal, and as plain text anywhere else."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from loadtests.compare import Compared, Comparison, Metric, Word
from loadtests.table import WIDE, default_console, section
from loadtests.words import difference, figure
from serve_app.cli.formats import count, plain

_COLOURS: dict[Word, str] = {"better": "green", "worse": "red", "no noise known": "yellow"}
_LONGEST = 2000


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """What differs from A to B, by how much, and whether that is more than noise."""
    console = console or default_console()
    style = "bold" if comparison.invalid else ""
    console.print(Text(plain(comparison.words, _LONGEST), style=style))
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        console.print(Text(f"{name}: {_side(side)}", style="dim"))
    narrow = console.width < WIDE
    shown = ["A", "B", "B - A", "", "95 % interval", "B is"]
    table = section("", *(shown[:4] + shown[5:] if narrow else shown), width=18)
    for metric in comparison.metrics:
        row = _row(metric)
        table.add_row(*(row[:5] + row[6:] if narrow else row))
    console.print()
    console.print(table)
    reasons = dict.fromkeys(metric.why for metric in comparison.metrics if metric.why)
    notes = [f"{_first_upper(_of(comparison, why))}: {why}." for why in reasons]
    for note in (*comparison.notes, *notes):
        console.print(Text(f"- {plain(note, _LONGEST)}", style="dim"))


def _side(side: Compared) -> str:
    sent = f"{count(side.runs, 'run')}, {count(side.requests, 'request')}"
    return f"{sent}, of {plain(side.scenario)} at {plain(side.url)}"


def _row(metric: Metric) -> list[str | Text]:
    relative = "" if metric.relative is None else f"{100 * metric.relative:+,.1f} %"
    between = ""
    if metric.low is not None and metric.high is not None:
        between = f"{_difference(metric.low, metric)} to {_difference(metric.high, metric)}"
    return [
        metric.name,
        _value(metric.a, metric),
        _value(metric.b, metric),
        _difference(metric.difference, metric),
        relative,
        between,
        Text(metric.word, style=_COLOURS.get(metric.word, "dim")),
    ]


def _value(value: float | None, metric: Metric) -> str:
    """The metric's name has the unit of GPU-seconds."""
    return figure(value, metric.unit).removesuffix(" GPU-s")


def _difference(value: float | None, metric: Metric) -> str:
    return difference(value, metric.unit).removesuffix(" GPU-s")


def _of(comparison: Comparison, why: str) -> str:
    return ", ".join(metric.name for metric in comparison.metrics if metric.why == why)


def _first_upper(text: str) -> str:
    return text[:1].upper() + text[1:]
