"""Cost versus attainment of all policies as a picture. Imports matplotlib: only `write_png` needs it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from matplotlib.transforms import Bbox, BboxBase, IdentityTransform

from loadtests.drawing.palette import LIGHT
from replay.defaults import GOAL, ORACLE
from replay.report.comparison import Standing
from replay.result import Result
from serve_app.cli import formats

_TICKS = (0.0, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0)
_KINDS = {
    "main": ("*", "held", 190, "this policy"),
    "leading": ("o", "accent", 42, "on the front"),
    "beaten": ("o", "other", 42, "beaten on both"),
    "bound": ("D", "ink", 40, "oracle"),
}
# Where a name may stand beside its point, in points of type, tried in this order.
_PLACES = [
    (dx * (9 + away / 2), dy * (9 + away), away)
    for away in (0.0, 12.0, 24.0, 36.0, 48.0, 60.0)
    for dx, dy in ((1, 0), (0, 1), (0, -1), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1))
]


def frontier_figure(
    rows: Sequence[Standing], result: Result, inches: tuple[float, float], dpi: int
) -> Figure:
    """Every policy as a point; cost as a ratio to the oracle's where that is known."""
    figure = Figure(figsize=inches, dpi=dpi, facecolor=LIGHT["panel"])
    figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.08)
    panel = figure.add_subplot()
    oracle = result.oracle_gpu_seconds
    scale = oracle or 1.0
    shown = [row for row in rows if np.isfinite(row.gpu_seconds) and np.isfinite(row.attainment)]
    _axes(panel, max((row.gpu_seconds / scale for row in shown), default=0.0), bool(oracle))
    panel.set_title(
        f"Cost versus attainment on {formats.plain(result.trace, 80)}",
        loc="left", fontsize=13, fontweight="bold", color=LIGHT["ink"], pad=48,
    )  # fmt: skip
    panel.axhline(GOAL, color=LIGHT["ok"], linewidth=1.1, linestyle=(0, (6, 4)))
    panel.text(
        1.0, GOAL, f"goal {100 * GOAL:g} %", transform=panel.get_yaxis_transform(), ha="right", va="bottom",
        color=LIGHT["ok"], fontsize=9,
    )  # fmt: skip
    if oracle:
        panel.axvline(1.0, color=LIGHT["soft"], linewidth=1.0, linestyle=":")
    _front(panel, shown, scale)
    used = [kind for kind in _KINDS if _points(panel, shown, scale, kind)]
    _names(figure, panel, sorted(shown, key=lambda row: not row.main), scale)
    handles = [_key(kind) for kind in used]
    if handles:
        panel.legend(
            handles=handles, loc="lower right", bbox_to_anchor=(1.0, 1.05), ncols=len(handles), frameon=False,
            fontsize=9, labelcolor=LIGHT["soft"], handletextpad=0.2, columnspacing=1.4,
        )  # fmt: skip
    return figure


def _axes(panel: Axes, most: float, over_oracle: bool) -> None:
    """Attainment by nines: policies differ in the last percents. The thousandth keeps 100 % in view."""
    panel.set_yscale(
        "function",
        functions=(lambda a: -np.log10(1.001 - np.clip(a, 0, 1)), lambda v: 1.001 - np.power(10.0, -v)),
    )
    panel.set_ylim(0.0, 1.0)
    panel.yaxis.set_major_locator(FixedLocator(_TICKS))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g} %"))
    panel.set_xlim(0, most * 1.12 if most > 0 else 1.0)
    unit = "{:g}x" if over_oracle else "{:,.0f}"
    panel.xaxis.set_major_formatter(FuncFormatter(lambda cost, _: unit.format(cost)))
    panel.set_xlabel(
        "GPU-seconds over the oracle's" if over_oracle else "GPU-seconds", color=LIGHT["soft"], loc="right"
    )
    panel.set_ylabel("share of requests in minutes that met the targets", color=LIGHT["soft"])
    panel.tick_params(colors=LIGHT["soft"], length=0, labelsize=9)
    panel.grid(color=LIGHT["grid"], linewidth=0.8)
    panel.set_axisbelow(True)
    for spine in panel.spines.values():
        spine.set_visible(False)


def _kind(row: Standing) -> str:
    if row.policy == ORACLE:
        return "bound"
    return "main" if row.main else "leading" if row.on_front else "beaten"


def _points(panel: Axes, rows: Sequence[Standing], scale: float, kind: str) -> bool:
    """Draws the points of one kind; whether there are any."""
    marker, _, size, _ = _KINDS[kind]
    face, edge = _colours(kind)
    found = [row for row in rows if _kind(row) == kind]
    panel.scatter(
        [row.gpu_seconds / scale for row in found],
        [row.attainment for row in found],
        s=size,
        marker=marker,
        color=face,
        edgecolors=edge,
        linewidths=1.2,
        zorder=4,
        clip_on=False,
    )
    return bool(found)


def _colours(kind: str) -> tuple[str, str]:
    """Of a point's face and of its edge."""
    if kind == "bound":
        return LIGHT["panel"], LIGHT["ink"]
    return LIGHT[_KINDS[kind][1]], LIGHT["panel"]


def _key(kind: str) -> Line2D:
    marker, _, size, label = _KINDS[kind]
    face, edge = _colours(kind)
    return Line2D(
        [], [], linestyle="", marker=marker, markersize=size**0.5, label=label, markerfacecolor=face,
        markeredgecolor=edge,
    )  # fmt: skip


def _front(panel: Axes, rows: Sequence[Standing], scale: float) -> None:
    front = sorted((row for row in rows if row.on_front), key=lambda row: row.gpu_seconds)
    if front:
        at = [row.gpu_seconds / scale for row in front]
        panel.step(
            [*at, panel.get_xlim()[1]], [*(row.attainment for row in front), front[-1].attainment],
            where="post", color=LIGHT["accent"], linewidth=1.2, alpha=0.55, zorder=2,
        )  # fmt: skip


def _names(figure: Figure, panel: Axes, rows: Sequence[Standing], scale: float) -> None:
    """A name beside each point, where it covers neither a point nor another name.

    One that finds no place is left out: the tables have it.
    """
    figure.draw_without_rendering()
    # From here on the names are in pixels, so nothing may move any more.
    figure.set_layout_engine("none")
    points = [panel.transData.transform((row.gpu_seconds / scale, row.attainment)) for row in rows]
    area = panel.get_window_extent()
    taken = [
        *(Bbox.from_extents(x - 11, y - 11, x + 11, y + 11) for x, y in points),
        *_lines(panel, [(row, x, y) for row, (x, y) in zip(rows, points, strict=True)], area),
    ]
    room = Bbox.from_extents(area.x0 + 4, area.y0 + 4, area.x1 + 16, area.y1 + 34)
    for row, (x, y) in zip(rows, points, strict=True):
        _name(panel, row, x, y, taken, room, figure.dpi / 72)


def _lines(panel: Axes, points: Sequence[tuple[Standing, float, float]], area: BboxBase) -> list[Bbox]:
    """What the goal, its name and the front cover, in pixels: no name is to be written across them."""
    goal = float(panel.transData.transform((0, GOAL))[1])
    boxes = [
        Bbox.from_extents(area.x0, goal - 1, area.x1, goal + 1),
        Bbox.from_extents(area.x1 - 110, goal - 2, area.x1, goal + 26),
    ]
    front = sorted((x, y) for row, x, y in points if row.on_front)
    for (x, y), (right, top) in pairwise([*front, *((area.x1, y) for _, y in front[-1:])]):
        boxes.append(Bbox.from_extents(x, y - 1, right, y + 1))
        boxes.append(Bbox.from_extents(right - 1, y, right + 1, top))
    return boxes


def _name(
    panel: Axes, row: Standing, x: float, y: float, taken: list[Bbox], room: Bbox, point: float
) -> None:
    """`point` is the pixels of a point of type."""
    name = panel.text(
        x, y, formats.plain(row.policy, 28), transform=IdentityTransform(), fontsize=9.5, color=LIGHT["ink"],
        fontweight="bold" if row.main else "normal", zorder=5,
        path_effects=[withStroke(linewidth=3, foreground=LIGHT["panel"])],
    )  # fmt: skip
    for dx, dy, away in _PLACES:
        name.set_position((x + dx * point, y + dy * point))
        name.set_horizontalalignment("left" if dx > 0 else "right" if dx < 0 else "center")
        name.set_verticalalignment("bottom" if dy > 0 else "top" if dy < 0 else "center")
        box = name.get_window_extent()
        inside = room.x0 <= box.x0 and box.x1 <= room.x1 and room.y0 <= box.y0 and box.y1 <= room.y1
        if not inside or any(box.overlaps(other) for other in taken):
            continue
        taken.append(box)
        if away:
            panel.add_artist(
                Line2D(
                    [x, x + dx * point], [y, y + dy * point], transform=IdentityTransform(),
                    color=LIGHT["soft"], linewidth=0.7, zorder=3,
                )
            )  # fmt: skip
        return
    name.remove()
