"""Cost against attainment of all policies, one panel a window. Imports matplotlib."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from benchmarks.autoscaling.summary import BURSTY_GOAL, SMOOTH_GOAL, Results, family
from benchmarks.autoscaling.windows import Window
from loadtests.drawing.palette import LIGHT
from replay.defaults import ORACLE, OURS, STATIC
from serve_app.cli import formats

_COLUMNS = 3
_PANEL_INCHES = (4.3, 3.2)
_DPI = 150
_ATTAINMENTS = (0.0, 0.5, 0.9, 0.95, 0.99, 1.0)
_RATIOS = (0.1, 0.2, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0)
# Marker, colour of the palette, size. A law's settings are joined by a line.
_STYLES = {
    OURS: ("*", "held", 15.0),
    ORACLE: ("D", "ink", 7.0),
    STATIC: ("s", "ink", 6.5),
    "ray": ("o", "ready", 6.0),
    "kpa": ("^", "ok", 6.5),
    "hpa:ongoing": ("v", "wanted", 6.5),
    "hpa:waiting": ("<", "draining", 6.5),
    "apa": ("P", "starting", 7.0),
    "dynamo": ("X", "queued", 7.0),
    "wva": ("h", "other", 7.0),
}
_OTHER = ("d", "soft", 6.0)
_NAMES = {OURS: "Tideserve", STATIC: "static, in hindsight"}
_PEERS_ZORDER, _OWN_ZORDER = 3, 5


def write_picture(results: Results, path: Path) -> None:
    """Draw the medians of all runs under the usual circumstances.

    Raises OSError if the file cannot be written.
    """
    cells = len(results.windows) + 1  # the last one is the key
    columns = min(_COLUMNS, cells)
    rows = math.ceil(cells / columns)
    width, height = _PANEL_INCHES
    with rc_context({"text.parse_math": False, "font.size": 9.0}):
        figure = Figure(figsize=(width * columns, height * rows), dpi=_DPI, facecolor=LIGHT["panel"])
        figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.1)
        panels: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
        seen: dict[str, None] = {}
        for panel, window in zip(panels, results.windows, strict=False):
            seen |= dict.fromkeys(_draw(panel, results, window))
        for panel in panels[len(results.windows) :]:
            panel.set_axis_off()
        _key(panels[len(results.windows)], list(seen))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="png", metadata={"Software": "Tideserve"})


def _draw(panel: Axes, results: Results, window: Window) -> list[str]:
    """One window; returns the laws it shows."""
    over_oracle = bool(results.of(window, ORACLE))
    _frame(panel, window, over_oracle)
    laws: dict[str, list[tuple[float, float]]] = {}
    for policy in (*results.peers(), STATIC, ORACLE, OURS):
        cost = results.ratio(window, policy, ORACLE if over_oracle else policy)
        attainment = results.spread(window, policy, "attainment")
        total = results.spread(window, policy, "gpu_seconds")
        if cost is None or attainment is None or total is None:
            continue
        point = (cost.median if over_oracle else total.median, attainment.median)
        laws.setdefault(family(policy), []).append(point)
    for law, points in laws.items():
        marker, colour, size = _STYLES.get(law, _OTHER)
        points.sort()
        panel.plot(
            [x for x, _ in points],
            [y for _, y in points],
            marker=marker,
            markersize=size,
            color=LIGHT[colour],
            markerfacecolor=LIGHT["panel"] if law in (ORACLE, STATIC) else LIGHT[colour],
            markeredgecolor=LIGHT[colour] if law in (ORACLE, STATIC) else LIGHT["panel"],
            linewidth=0.8,
            alpha=0.95,
            zorder=_OWN_ZORDER if law in (OURS, ORACLE) else _PEERS_ZORDER,
            clip_on=False,
        )
    if over_oracle:
        _ratio_axis(panel, [x for points in laws.values() for x, _ in points])
    return list(laws)


def _frame(panel: Axes, window: Window, over_oracle: bool) -> None:
    """Attainment by nines: policies differ in the last percents."""
    goal = SMOOTH_GOAL if window.smooth else BURSTY_GOAL
    panel.set_title(
        f"{formats.plain(window.name, 40)}, {'smooth' if window.smooth else 'bursty'}",
        loc="left", fontsize=10.5, fontweight="bold", color=LIGHT["ink"], pad=12,
    )  # fmt: skip
    panel.set_yscale(
        "function",
        functions=(lambda a: -np.log10(1.002 - np.clip(a, 0, 1)), lambda v: 1.002 - np.power(10.0, -v)),
    )
    panel.set_ylim(0.0, 1.0)
    panel.yaxis.set_major_locator(FixedLocator(_ATTAINMENTS))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g} %"))
    panel.axhline(goal, color=LIGHT["ok"], linewidth=1.1, linestyle=(0, (6, 4)), zorder=1)
    panel.set_ylabel("attainment", color=LIGHT["soft"])
    panel.set_xlabel("GPU-seconds over the oracle's" if over_oracle else "GPU-seconds", color=LIGHT["soft"])
    panel.tick_params(colors=LIGHT["soft"], length=0)
    panel.grid(color=LIGHT["grid"], linewidth=0.8)
    panel.set_axisbelow(True)
    for spine in panel.spines.values():
        spine.set_visible(False)


def _ratio_axis(panel: Axes, ratios: Sequence[float]) -> None:
    panel.set_xscale("log")
    low, high = min(*ratios, 0.9), max(*ratios, 1.6)
    panel.set_xlim(low / 1.15, high * 1.15)
    panel.xaxis.set_major_locator(
        FixedLocator([ratio for ratio in _RATIOS if low / 1.15 <= ratio <= high * 1.15])
    )
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}x"))
    panel.axvline(1.0, color=LIGHT["soft"], linewidth=1.0, linestyle=":", zorder=1)


def _key(panel: Axes, laws: Sequence[str]) -> None:
    handles = []
    for law in sorted(laws, key=lambda name: list(_STYLES).index(name) if name in _STYLES else len(_STYLES)):
        marker, colour, size = _STYLES.get(law, _OTHER)
        hollow = law in (ORACLE, STATIC)
        handles.append(
            Line2D(
                [], [], linestyle="", marker=marker, markersize=size, label=_NAMES.get(law, law),
                markerfacecolor=LIGHT["panel"] if hollow else LIGHT[colour],
                markeredgecolor=LIGHT[colour],
            )
        )  # fmt: skip
    handles.append(Line2D([], [], color=LIGHT["ok"], linestyle=(0, (6, 4)), linewidth=1.1, label="goal"))
    panel.legend(handles=handles, loc="center left", frameon=False, labelcolor=LIGHT["ink"], fontsize=10)
