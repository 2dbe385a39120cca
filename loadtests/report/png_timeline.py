"""The timeline of a load test as a picture. Imports matplotlib: only `write_png` needs this module."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import blended_transform_factory

from loadtests.drawing.palette import LIGHT
from loadtests.drawing.pictures import Floats, blank, frame, panels_of, replica_panel, time_axis
from loadtests.percentiles import Percentiles
from loadtests.record import Run
from loadtests.report.chart_data import REPLICAS, replica_series, window_series
from loadtests.report.html import bounds_s
from loadtests.report.png_axes import latency_axis
from loadtests.report.story import story
from loadtests.scenario import Scenario
from loadtests.summary import Summary
from loadtests.units import seconds
from loadtests.verdicts import PERCENTILE_NAMES, Verdicts
from serve_app.cli.formats import plain

TIMELINE_INCHES = (12.0, 8.4)
_MOST_MODELS = 3
_WIDTHS = {"p50": 0.8, "p95": 1.3, "p99": 2.0}
_NUMBER_SHARE = 0.011  # of the axis: half of the width that a decision's number takes
_LABEL_SHARE = 0.1  # of the height of a latency panel: that of a bound's name
_STORY_CUT = 160
_BOUND: Mapping[str, Any] = {"color": LIGHT["ink"], "linewidth": 0.8, "linestyle": (0, (4, 4))}


def timeline_figure(run: Run, summary: Summary, verdicts: Verdicts) -> Figure:
    """Draw requests a second, the replicas of up to three models, TTFT and ITL, over one axis of time."""
    scenario = Scenario.model_validate(run.scenario)
    title = f"{scenario.name}: {verdicts.overall.upper()}"
    if not summary.windows:
        return blank(TIMELINE_INCHES, title, "The run took no time: there is nothing to draw.")
    figure = blank(TIMELINE_INCHES, f"{title}\n")
    models = replica_series(run)[:_MOST_MODELS]
    panels = panels_of(figure, [1.0, *([2.0 if len(models) == 1 else 1.4] * len(models)), 1.3, 1.1])
    edges = np.array([*(window.start_s for window in summary.windows), summary.windows[-1].end_s])
    end = float(max(run.duration_s, edges[-1]))
    _rate(panels[0], edges, window_series(run, summary))
    numbers = _numbered(run)
    for panel, model in zip(panels[1:-2], models, strict=True):
        at = np.array([*model["at_s"], end], dtype=float)
        counts = {name: np.array([*model[name], model[name][-1]], dtype=float) for name in REPLICAS}
        replica_panel(panel, at, counts, 1.24)
        _decisions(panel, [(at, number) for at, number, name in numbers if name == model["model"]], end)
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
    # Below the title, in the room that its second line keeps.
    words = plain(story(run, summary), _STORY_CUT)
    figure.text(0.01, 0.955, words, color=LIGHT["soft"], fontsize=10, va="top").set_in_layout(False)
    return figure


def _rate(panel: Axes, edges: Floats, windows: Mapping[str, Any]) -> None:
    offered, answered = (np.array(windows[key], dtype=float) for key in ("offered_rps", "answered_rps"))
    panel.stairs(offered, edges, fill=True, color=LIGHT["arrivals"], alpha=0.3, label="offered")
    panel.stairs(answered, edges, color=LIGHT["ok"], linewidth=1.2, label="answered")
    panel.set_ylim(0, max(float(offered.max()), float(answered.max()), 1e-9) * 1.08)


def _decisions(panel: Axes, decided: Sequence[tuple[float, int]], end: float) -> None:
    """Draw a dotted line for each decision, and its number; numbers that would meet become a range."""
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
    """Return the time, number and model of each decision that changed something, numbered as on the page."""
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
    """Draw a line for each bound, named on the right; an arrow says that it lies beyond the axis."""
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
