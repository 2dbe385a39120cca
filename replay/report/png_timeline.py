"""The timeline of one result as a picture. Imports matplotlib: only `write_png` needs this module."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from loadtests.drawing.palette import LIGHT
from loadtests.drawing.pictures import Floats, blank, frame, panels_of, replica_panel, stack, steps, time_axis
from replay.report.document import WINDOW_S, thinned
from replay.result import Result, Timeline
from serve_app.cli import formats

TIMELINE_INCHES = (12.0, 8.4)
_HEIGHTS = (1.0, 2.6, 1.0, 1.3, 0.45)


def timeline_figure(result: Result) -> Figure:
    """Draw arrivals, replicas, waiting requests, latencies over their targets, and the SLO by the minute."""
    title = (
        f"{formats.plain(result.policy)} on {formats.plain(result.trace)}: "
        f"{formats.percent(result.attainment)} attained, "
        f"{formats.whole(result.gpu_seconds.total)} GPU-seconds"
    )
    if not len(result.timeline.at_s):
        return blank(TIMELINE_INCHES, title, "Nothing was replayed: the trace has no requests.")
    figure = blank(TIMELINE_INCHES, title)
    panels = panels_of(figure, _HEIGHTS)
    line = thinned(result).timeline
    _arrivals(panels[0], line)
    _replicas(panels[1], line, result.decisions)
    _waiting(panels[2], line)
    _latencies(panels[3], result)
    _slo(panels[4], result)
    latency = f"P{result.percentile:g} over its target"
    titles = ("Arrivals, requests/s", "Replicas", "Waiting requests", latency, "SLO by the minute")
    for panel, words in zip(panels, titles, strict=True):
        frame(panel, words)
    time_axis(panels[-1], result.duration_s, _clock, "time since the start, h:mm")
    return figure


def _arrivals(panel: Axes, line: Timeline) -> None:
    stack(panel, line.at_s, [("", "arrivals", line.arrivals_rps)])
    steps(panel, line.at_s, line.arrivals_rps, "arrivals", 0.7)
    panel.set_ylim(bottom=0)


def _replicas(panel: Axes, line: Timeline, decisions: Sequence[Mapping[str, Any]]) -> None:
    counts = {name: getattr(line, name) for name in ("ready", "starting", "draining", "wanted", "target")}
    top = replica_panel(panel, line.at_s, counts, 1.18)
    moves = [(float(r["at"]), int(r["new_target"]) - int(r["old_target"])) for r in decisions]
    for marker, name, label, sign in (("^", "accent", "decision up", 1), ("v", "soft", "down", -1)):
        times = [when for when, move in moves if move * sign > 0]
        if times:
            panel.plot(
                times, [top * 0.94] * len(times), marker, color=LIGHT[name], markersize=4.5, label=label
            )


def _waiting(panel: Axes, line: Timeline) -> None:
    held, queued = ("held, no replica is ready", "held", line.held), ("queued in engines", "queued")
    stack(panel, line.at_s, [held, (*queued, line.queued - line.held)])
    steps(panel, line.at_s, line.queued, "queued", 1.0)
    if line.held.any():
        steps(panel, line.at_s, line.held, "held", 1.0)
    panel.set_ylim(0, max(float(line.queued.max()) * 1.1, 1.0))


def _latencies(panel: Axes, result: Result) -> None:
    windows = result.windows
    at: Floats = np.arange(len(windows.requests), dtype=np.float64) * WINDOW_S
    worst = 2.0
    for name, label, values, target, style in (
        ("ttft", "TTFT", windows.ttft_p95_s, result.ttft_target_s, "-"),
        ("itl", "ITL", windows.itl_p95_s, result.itl_target_s, "--"),
    ):
        seen = (windows.requests > 0) & (values > 0)
        over: Floats = np.where(seen, values / target, np.nan).astype(np.float64)
        if np.isfinite(over).any():
            worst = max(worst, float(np.nanmax(over)))
        steps(panel, at, over, name, 1.2, label, style)
    panel.set_yscale("log")
    high = 10 ** math.ceil(math.log10(worst))
    panel.set_ylim(0.1, high)
    panel.axhspan(1.0, high, color=LIGHT["missed"], alpha=0.07, linewidth=0)
    panel.axhline(1.0, color=LIGHT["ink"], linewidth=0.9, linestyle="--", label="target")
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    panel.minorticks_off()


def _slo(panel: Axes, result: Result) -> None:
    """Draw a tall bar for a minute that missed the targets, and a low one for one that attained them."""
    windows = result.windows
    at = np.arange(len(windows.requests)) * WINDOW_S
    busy = windows.requests > 0
    missed = busy & (windows.attained <= 0)
    good = busy & ~missed
    for which, height, name, label in (
        (good, 0.55, "ok", "attained"),
        (missed, 1.0, "missed", "missed"),
        (~busy, 0.08, "line", "no requests"),
    ):
        bottom = (1.0 - height) / 2
        panel.bar(
            at[which], height, WINDOW_S, bottom, align="edge", color=LIGHT[name], linewidth=0, label=label
        )
    cold = at[windows.cold > 0] + WINDOW_S / 2
    if len(cold):
        panel.plot(cold, [-0.45] * len(cold), "D", color=LIGHT["held"], markersize=4, label="cold waits")
    panel.set_ylim(-0.9, 1.05)
    panel.set_yticks([])


def _clock(at: float, step: float) -> str:
    total = round(at)
    text = f"{total // 3600}:{total // 60 % 60:02d}"
    return f"{text}:{total % 60:02d}" if step < WINDOW_S else text
