"""The timeline of a load test as a picture. Imports matplotlib: only `write_png` needs this module."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import blended_transform_factory

from loadtests.drawing.palette import LIGHT
from loadtests.drawing.pictures import Floats, band, frame, steps, time_axis
from loadtests.percentiles import Percentiles
from loadtests.record import Run
from loadtests.report.chart_data import replica_series, window_series
from loadtests.report.page_data import bounds_s
from loadtests.report.png_axes import latency_axis
from loadtests.report.story import story
from loadtests.scenario import Scenario
from loadtests.summary import Summary
from loadtests.units import seconds
from loadtests.verdicts import PERCENTILE_NAMES, Verdicts
from serve_app.cli.formats import plain

_MOST_MODELS = 3
_WIDTHS = {"p50": 0.8, "p95": 1.3, "p99": 2.0}
_NUMBER_SHARE = 0.011  # of the axis: half of the width that a decision's number takes
_LABEL_SHARE = 0.1  # of the height of a latency panel: that of a bound's name
_STORY_CUT = 190
_BOUND: Mapping[str, Any] = {"color": LIGHT["ink"], "linewidth": 0.8, "linestyle": (0, (4, 4))}


def timeline_figure(
    run: Run, summary: Summary, verdicts: Verdicts, inches: tuple[float, float], dpi: int
) -> Figure:
    """Requests a second, the replicas of up to three models, TTFT and ITL, over one axis of time."""
    scenario = Scenario.model_validate(run.scenario)
    figure = Figure(figsize=inches, dpi=dpi, facecolor=LIGHT["panel"])
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.06)
    figure.suptitle(
        f"{scenario.name}: {verdicts.overall.upper()}",
        fontsize=14, fontweight="bold", color=LIGHT["ink"], x=0.01, ha="left",
    )  # fmt: skip
    if not summary.windows:
        figure.text(0.5, 0.5, "Nothing took any time: there is nothing to draw.", ha="center")
        return figure
    models = replica_series(run)[:_MOST_MODELS]
    heights = [1.0, *([2.0 if len(models) == 1 else 1.4] * len(models)), 1.3, 1.1]
    rows = figure.subplots(len(heights), 1, sharex=True, gridspec_kw={"height_ratios": heights})
    panels: list[Axes] = list(rows)
    edges = np.array([*(window.start_s for window in summary.windows), summary.windows[-1].end_s])
    end = float(max(run.duration_s, edges[-1]))
    _rate(panels[0], edges, window_series(run, summary))
    numbers = _numbered(run)
    for panel, model in zip(panels[1:-2], models, strict=True):
        _replicas(panel, model, [(at, number) for at, number, name in numbers if name == model["model"]], end)
        of = f" of {plain(model['model'], 40)}" if len(models) > 1 else ""
        frame(panel, f"Replicas{of}")
    slos = scenario.slos
    ttft, of_warm = bounds_s(slos.ttft_ms, 1000), bounds_s(slos.warm_ttft_ms, 1000)
    whose = "" if ttft else "of warm requests "
    _latency(panels[-2], edges, [w.ttft_s for w in summary.windows], "ttft", ttft or of_warm, whose)
    _latency(panels[-1], edges, [w.itl_s for w in summary.windows], "itl", bounds_s(slos.itl_ms, 1000))
    frame(panels[0], "Requests/s")
    frame(panels[-2], "TTFT by intended time")
    frame(panels[-1], "ITL")
    time_axis(panels[-1], end, _clock, "time since the start")
    panels[0].annotate(
        plain(story(run, summary), _STORY_CUT),
        (0.012, 1.0), xycoords=("figure fraction", "axes fraction"), xytext=(0, 24),
        textcoords="offset points", color=LIGHT["soft"], fontsize=10, annotation_clip=False,
    )  # fmt: skip
    return figure


def _rate(panel: Axes, edges: Floats, windows: Mapping[str, Any]) -> None:
    offered, answered = (np.array(windows[key], dtype=float) for key in ("offered_rps", "answered_rps"))
    panel.stairs(offered, edges, fill=True, color=LIGHT["arrivals"], alpha=0.3, label="offered")
    panel.stairs(answered, edges, color=LIGHT["ok"], linewidth=1.2, label="answered")
    panel.set_ylim(0, max(float(offered.max()), float(answered.max()), 1e-9) * 1.08)


def _replicas(
    panel: Axes, model: Mapping[str, Any], decided: Sequence[tuple[float, int]], end: float
) -> None:
    at = np.array([*model["at_s"], end], dtype=float)
    known = {
        key: np.array([*values, values[-1]], dtype=float)
        for key, values in model.items()
        if key not in ("at_s", "model")
    }
    low = np.zeros(len(at))
    for name, colour, hatch in (
        ("ready", "ready", None),
        ("starting", "starting", "/////"),
        ("pending", "other", "....."),
        ("draining", "draining", "\\\\\\\\"),
    ):
        high = low + np.nan_to_num(known[name])
        if np.any(high > low):
            band(panel, at, low, high, colour, name, hatch)
        low = high
    for name, width, dashes in (("ready", 0.9, "-"), ("wanted", 1.0, ":"), ("target", 1.3, "-")):
        steps(panel, at, known[name], name, width, None if name == "ready" else name, dashes)
    top = float(np.nanmax([low.max(), *known["wanted"], *known["target"], 1.0]))
    panel.set_ylim(0, top * 1.24)
    panel.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    _decisions(panel, decided, end)


def _decisions(panel: Axes, decided: Sequence[tuple[float, int]], end: float) -> None:
    """A dotted line for each decision, and its number; numbers that would meet become a range."""
    groups: list[list[tuple[float, int]]] = []
    for at, number in decided:
        panel.axvline(at, ymax=0.88, color=LIGHT["soft"], linewidth=0.8, linestyle=":")
        if groups and at - groups[-1][-1][0] < end * _NUMBER_SHARE * (2 if len(groups[-1]) == 1 else 3):
            groups[-1].append((at, number))
        else:
            groups.append([(at, number)])
    over = blended_transform_factory(panel.transData, panel.transAxes)
    for group in groups:
        (first, low), (last, high) = group[0], group[-1]
        words = str(low) if low == high else f"{low}-{high}"
        panel.text(
            (first + last) / 2, 0.93, words, transform=over, ha="center", va="center", fontsize=8,
            fontweight="bold", color=LIGHT["accent"], clip_on=False,
        )  # fmt: skip


def _numbered(run: Run) -> list[tuple[float, int, str]]:
    """The decisions that changed something, numbered as on the page: time, number and model."""
    moves = [
        record
        for record in run.decisions
        if record.get("kind") == "error"
        or record.get("wanted" if record.get("mode") == "advise" else "new_target")
        != record.get("old_target")
    ]
    return [
        (float(record["at"]) - run.began, number, str(record.get("model", "")))
        for number, record in enumerate(moves, start=1)
    ]


def _latency(
    panel: Axes,
    edges: Floats,
    found: Sequence[Percentiles | None],
    name: str,
    bounds: Mapping[str, float],
    whose: str = "",
) -> None:
    series = {
        key: np.array([math.nan if each is None else getattr(each, key) for each in found])
        for key in PERCENTILE_NAMES
    }
    never = latency_axis(panel, np.concatenate(list(series.values())), bounds.values())
    if not any(found):
        panel.text(0.5, 0.5, "nothing came", ha="center", transform=panel.transAxes, color=LIGHT["soft"])
    for key, line in series.items():
        shown = np.where(np.isinf(line), never, line)
        panel.stairs(
            shown, edges, baseline=None, color=LIGHT[name], linewidth=_WIDTHS[key], label=key.upper()
        )
    if bounds:
        told = ", ".join(f"{key.upper()} < {seconds(bound)}" for key, bound in bounds.items())
        panel.plot([], [], label=f"bounds {whose}{told}", **_BOUND)
    _bounds(panel, bounds)


def _bounds(panel: Axes, bounds: Mapping[str, float]) -> None:
    """A line for each bound, named on the right; an arrow says that it lies beyond the axis."""
    low, high = panel.get_ylim()
    rising = sorted(bounds.items(), key=lambda item: item[1])
    label_at = 1.0 + _LABEL_SHARE / 2
    labels = []
    for key, bound in reversed(rising):
        at = math.log(bound / low) / math.log(high / low)
        beyond = "↑" if at > 1 else "↓" if at < 0 else ""
        if not beyond:
            panel.axhline(bound, **_BOUND)
        label_at = min(at, label_at - _LABEL_SHARE)
        labels.append((f"{key.upper()}{beyond}", label_at))
    least = 0.0
    for words, wanted in reversed(labels):
        panel.annotate(
            words, (1.0, max(wanted, least)), xycoords="axes fraction", xytext=(4, 0), va="center",
            textcoords="offset points", fontsize=7.5, color=LIGHT["ink"], annotation_clip=False,
        )  # fmt: skip
        least = max(wanted, least) + _LABEL_SHARE


def _clock(at: float, step: float) -> str:
    total = round(at)
    hours, minutes = total // 3600, total // 60 % 60
    return f"{hours}:{minutes:02d}:{total % 60:02d}" if hours else f"{minutes}:{total % 60:02d}"
