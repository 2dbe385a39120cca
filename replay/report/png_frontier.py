"""Cost versus attainment of all policies as a picture. Imports matplotlib: only `write_png` needs it."""

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
from loadtests.drawing.pictures import blank
from replay.defaults import GOAL, ORACLE
from replay.report.comparison import Standing
from replay.result import Result
from serve_app.cli import formats

FRONTIER_INCHES = (10.0, 6.0)
_TICKS = (0.0, 0.5, 0.9, 0.95, 0.99, 0.999, 1.0)
_KINDS = {
    "main": ("*", "held", "panel", 13.8, "this policy"),
    "leading": ("o", "accent", "panel", 6.5, "on the front"),
    "beaten": ("o", "other", "panel", 6.5, "another is cheaper and better"),
    "bound": ("D", "panel", "ink", 6.3, "oracle"),
}
"""By kind of point: marker, colours of its face and its edge, size, and words."""
# Where a name may stand beside its point, in points of type, tried in this order.
_PLACES = [
    (dx * (9 + away / 2), dy * (9 + away), away)
    for away in (0.0, 12.0, 24.0, 36.0, 48.0, 60.0)
    for dx, dy in ((1, 0), (0, 1), (0, -1), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1))
]


def frontier_figure(rows: Sequence[Standing], result: Result) -> Figure:
    """Draw every policy as a point; cost as a ratio to the oracle's where that is known."""
    figure = blank(FRONTIER_INCHES)
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
    for kind, (marker, face, edge, size, label) in _KINDS.items():
        found = [row for row in shown if _kind(row) == kind]
        if found:
            panel.plot(
                [row.gpu_seconds / scale for row in found], [row.attainment for row in found], marker,
                markersize=size, color=LIGHT[face], markeredgecolor=LIGHT[edge], markeredgewidth=1.2,
                label=label, zorder=4, clip_on=False,
            )  # fmt: skip
    _names(figure, panel, sorted(shown, key=lambda row: not row.main), scale)
    handles, labels = panel.get_legend_handles_labels()
    if handles:
        panel.legend(
            handles, labels, loc="lower right", bbox_to_anchor=(1.0, 1.05), ncols=len(handles), frameon=False,
            fontsize=9, labelcolor=LIGHT["soft"], handletextpad=0.2, columnspacing=1.4,
        )  # fmt: skip
    return figure


def _axes(panel: Axes, most: float, over_oracle: bool) -> None:
    """Scale attainment by nines: policies differ in the last percents. The thousandth keeps 100 % in view."""
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


def _front(panel: Axes, rows: Sequence[Standing], scale: float) -> None:
    front = sorted((row for row in rows if row.on_front), key=lambda row: row.gpu_seconds)
    if front:
        at = [row.gpu_seconds / scale for row in front]
        panel.step(
            [*at, panel.get_xlim()[1]], [*(row.attainment for row in front), front[-1].attainment],
            where="post", color=LIGHT["accent"], linewidth=1.2, alpha=0.55, zorder=2,
        )  # fmt: skip


def _names(figure: Figure, panel: Axes, rows: Sequence[Standing], scale: float) -> None:
    """Write a name beside each point, where it covers neither a point nor another name.

    A name that fits nowhere is left out: the tables have it.
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
    """Return the boxes, in pixels, of the goal, its name and the front: no name is written across them."""
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
