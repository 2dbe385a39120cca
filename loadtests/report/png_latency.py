"""The distributions of TTFT and ITL as a picture. Imports matplotlib: only `write_png` needs this module."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from loadtests.columns import Columns
from loadtests.drawing.palette import LIGHT
from loadtests.drawing.pictures import blank, frame
from loadtests.record import Run
from loadtests.report.chart_data import distributions
from loadtests.report.html import bounds_s
from loadtests.report.png_axes import label_axis, limits, round_ticks
from loadtests.scenario import Scenario
from loadtests.units import seconds

LATENCY_INCHES = (12.0, 4.6)
_SHARES = (0.0, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999)
_MOST_TAIL = 4.2
_LEGEND_AT = 0.995
_LINES = {"all": (None, "-"), "warm": ("ok", "--"), "held": ("held", ":")}


def latency_figure(run: Run) -> Figure:
    """Draw the share of requests, and of gaps between pieces, that were as fast, and their bounds."""
    slos = Scenario.model_validate(run.scenario).slos
    figure = blank(LATENCY_INCHES)
    curves = distributions(Columns.of(run.records))
    ttft = {"": bounds_s(slos.ttft_ms, 1000), "warm ": bounds_s(slos.warm_ttft_ms, 1000)}
    itl = {"": bounds_s(slos.itl_ms, 1000)}
    for panel, name, things, bounds, empty in zip(
        figure.subplots(1, 2), ("ttft", "itl"), ("requests", "gaps"), (ttft, itl),
        ("No request was sent.", "No answer had two pieces."), strict=True,
    ):  # fmt: skip
        panel.set_ylabel(f"share of {things} that were as fast", color=LIGHT["soft"], fontsize=8.5)
        _distribution(panel, curves[name], bounds, name, empty)
        frame(panel, name.upper(), _LEGEND_AT)
    return figure


def _tail(share: float) -> float:
    """Return where a share is drawn: the axis widens towards 1."""
    return -math.log10(1 - min(share, 0.999999))


def _distribution(
    panel: Axes,
    curves: Sequence[Mapping[str, Any]],
    bounds: Mapping[str, Mapping[str, float]],
    name: str,
    empty: str,
) -> None:
    if not curves:
        panel.text(0.5, 0.5, empty, ha="center", transform=panel.transAxes, color=LIGHT["soft"])
        panel.set_xticks([])
        panel.set_yticks([])
        return
    marks = [
        (value, int(which[1:]) / 100, f"{of}{which.upper()} < {seconds(value)}")
        for of, known in bounds.items()
        for which, value in known.items()
    ]
    values = [value for curve in curves for value in curve["value_s"]]
    low, high = limits(np.array(values, dtype=float), [value for value, _, _ in marks])
    panel.set_xscale("log")
    panel.set_xlim(low, high)
    label_axis(panel.xaxis, round_ticks(low, high))
    top = max([2.3, *(_tail(curve["share"][-1]) for curve in curves if curve["share"])])
    panel.set_ylim(0, min(top, _MOST_TAIL) * 1.03)
    panel.yaxis.set_major_locator(FixedLocator([_tail(s) for s in _SHARES if _tail(s) <= top]))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{100 * (1 - 10**-at):.6g} %"))
    for curve in curves:
        colour, dashes = _LINES[curve["name"]]
        label = f"{curve['name']}, {curve['count']:,}"
        label += f" ({curve['never']:,} never)" if curve["never"] else ""
        panel.plot(
            curve["value_s"], [_tail(share) for share in curve["share"]],
            color=LIGHT[colour or name], linewidth=1.8, linestyle=dashes, label=label,
        )  # fmt: skip
    lines: Counter[float] = Counter()
    for value, share, words in sorted(marks):
        if low <= value <= high:
            _bound(panel, value, share, words, value > math.sqrt(low * high))
        else:
            _far(panel, share, words, value > high, lines[share])
            lines[share] += 1


def _bound(panel: Axes, value: float, share: float, words: str, before: bool) -> None:
    """Draw a ring; a curve that keeps its bound passes above it, on its left."""
    panel.plot([value], [_tail(share)], "o", markersize=5, color=LIGHT["ink"], markerfacecolor=LIGHT["panel"])
    _words(panel, words, value, share, (-7 if before else 7, -9 if before else 0), before)


def _far(panel: Axes, share: float, words: str, beyond: bool, line: int) -> None:
    """Name a bound off the axis at its edge; those of one share stand below each other."""
    edge = panel.get_xlim()[beyond]
    _words(panel, f"{words} →" if beyond else f"← {words}", edge, share, (0, -11 * line), beyond)


def _words(
    panel: Axes, words: str, value: float, share: float, points: tuple[float, float], before: bool
) -> None:
    text = panel.annotate(
        words, (value, _tail(share)), xytext=points, textcoords="offset points", fontsize=8,
        ha="right" if before else "left", va="center", color=LIGHT["ink"],
    )  # fmt: skip
    text.set_path_effects([withStroke(linewidth=3, foreground=LIGHT["panel"])])
