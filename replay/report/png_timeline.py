"""The timeline of one result as a picture. Imports matplotlib: only `write_png` needs this module."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from loadtests.drawing.palette import LIGHT
from loadtests.drawing.pictures import band, frame, steps, time_axis
from loadtests.traces.trace import Floats
from replay.report.document import WINDOW_S
from replay.report.thinning import thinned
from replay.result import Result
from serve_app.cli import formats

_HEIGHTS = (1.0, 2.6, 1.0, 1.3, 0.45)


def timeline_figure(result: Result, inches: tuple[float, float], dpi: int) -> Figure:
    """Arrivals, replicas, waiting requests, latencies over their targets, and the SLO by the minute."""
    figure = Figure(figsize=inches, dpi=dpi, facecolor=LIGHT["panel"])
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.07)
    policy, trace = formats.plain(result.policy), formats.plain(result.trace)
    figure.suptitle(
        f"{policy} on {trace}: {formats.percent(result.attainment)} attained, "
        f"{formats.whole(result.gpu_seconds.total)} GPU-seconds",
        fontsize=13,
        fontweight="bold",
        color=LIGHT["ink"],
        x=0.01,
        ha="left",
    )
    if not len(result.timeline.at_s):
        figure.text(
            0.5, 0.5, "Nothing was replayed: the trace has no requests.", ha="center", color=LIGHT["soft"]
        )
        return figure
    panels: list[Axes] = list(figure.subplots(5, 1, sharex=True, gridspec_kw={"height_ratios": _HEIGHTS}))
    thin = thinned(result)
    _arrivals(panels[0], thin)
    _replicas(panels[1], thin)
    _waiting(panels[2], thin)
    _latencies(panels[3], result)
    _slo(panels[4], result)
    for panel, title in zip(
        panels,
        (
            "Arrivals, requests/s",
            "Replicas",
            "Waiting requests",
            f"P{result.percentile:g} over its target",
            "SLO by the minute",
        ),
        strict=True,
    ):
        frame(panel, title)
    time_axis(panels[-1], result.duration_s, _clock, "time since the start, h:mm")
    return figure


def _arrivals(panel: Axes, result: Result) -> None:
    line = result.timeline
    band(panel, line.at_s, np.zeros_like(line.at_s), line.arrivals_rps, "arrivals", None)
    steps(panel, line.at_s, line.arrivals_rps, "arrivals", 0.7)
    panel.set_ylim(bottom=0)


def _replicas(panel: Axes, result: Result) -> None:
    line = result.timeline
    at = line.at_s
    up = line.ready + line.starting
    band(panel, at, np.zeros_like(at), line.ready, "ready", "ready")
    band(panel, at, line.ready, up, "starting", "starting", "/////")
    band(panel, at, up, up + line.draining, "draining", "draining", "\\\\\\\\")
    steps(panel, at, line.wanted, "wanted", 1.0, "wanted", ":")
    steps(panel, at, line.ready, "ready", 0.9)
    steps(panel, at, line.target, "target", 1.3, "target")
    top = max(float(np.max(up + line.draining)), float(line.wanted.max()), float(line.target.max()), 1.0)
    panel.set_ylim(0, top * 1.18)
    moves = [(float(r["at"]), int(r["new_target"]) - int(r["old_target"])) for r in result.decisions]
    for marker, name, label, times in (
        ("^", "accent", "decision up", [when for when, move in moves if move > 0]),
        ("v", "soft", "down", [when for when, move in moves if move < 0]),
    ):
        if times:
            panel.plot(
                times, [top * 1.11] * len(times), marker, color=LIGHT[name], markersize=4.5, label=label
            )
    panel.yaxis.set_major_locator(MaxNLocator(6, integer=True))


def _waiting(panel: Axes, result: Result) -> None:
    line = result.timeline
    nothing = np.zeros_like(line.at_s)
    band(panel, line.at_s, line.held, line.queued, "queued", "queued in engines")
    steps(panel, line.at_s, line.queued, "queued", 1.0)
    band(panel, line.at_s, nothing, line.held, "held", "held, no replica is ready")
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
    """A tall bar for a minute that missed, a low one for one that attained."""
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
