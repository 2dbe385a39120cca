"""Pictures as files, and parts of those over time. Imports matplotlib, which takes half a second."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MultipleLocator

from loadtests.drawing.palette import LIGHT

Floats = npt.NDArray[np.float64]
_TIME_STEPS_S = (1, 5, 15, 60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
_MOST_TICKS = 14


def write_pictures(
    folder_or_path: str | Path, figures: Mapping[str, Callable[[], Figure]]
) -> tuple[Path, ...]:
    """Draw `figures`, by name, and write them; returns where.

    In a folder, which is made if need be, each has its name and `.png`; a path that ends in `.png` gets the
    name before its ending: `r1.png` gives `r1-timeline.png`.

    Raises:
        OSError: if a file cannot be written.
    """
    place = Path(folder_or_path)
    prefix = ""
    if place.suffix.lower() == ".png":
        place, prefix = place.parent, f"{place.stem}-"
    place.mkdir(parents=True, exist_ok=True)
    paths = tuple(place / f"{prefix}{name}.png" for name in figures)
    # A name from outside may have dollars in it; they are no formula.
    with rc_context({"text.parse_math": False, "font.size": 9.5, "hatch.linewidth": 1.2}):
        for path, drawn in zip(paths, figures.values(), strict=True):
            drawn().savefig(path, format="png", metadata={"Software": "Tideserve"})
    return paths


def steps(
    panel: Axes,
    at: Floats,
    values: Floats,
    name: str,
    width: float,
    label: str | None = None,
    dashes: str = "-",
) -> None:
    """A line in the palette's colour `name`; each value holds until the next one's time."""
    panel.step(at, values, where="post", color=LIGHT[name], label=label, linewidth=width, linestyle=dashes)


def band(
    panel: Axes, at: Floats, low: Floats, high: Floats, name: str, label: str | None, hatch: str | None = None
) -> None:
    """The area between two lines of steps, hatched or lightly filled."""
    panel.fill_between(
        at,
        low,
        high,
        step="post",
        facecolor="none" if hatch else LIGHT[name],
        edgecolor=LIGHT[name],
        alpha=0.8 if hatch else 0.3,
        hatch=hatch,
        linewidth=0,
        label=label,
    )


def frame(panel: Axes, title: str, legend_at: float = 0.97) -> None:
    """Title, grid, and a legend that stands at that share of the height. Call it when everything is drawn."""
    panel.set_title(title, loc="left", fontsize=10, fontweight="bold", color=LIGHT["ink"], pad=3)
    panel.set_facecolor(LIGHT["panel"])
    panel.tick_params(colors=LIGHT["soft"], length=3, labelsize=8.5)
    panel.grid(axis="y", color=LIGHT["grid"], linewidth=0.8)
    panel.set_axisbelow(True)
    for side in ("top", "right", "left"):
        panel.spines[side].set_visible(False)
    panel.spines["bottom"].set_color(LIGHT["line"])
    handles, labels = panel.get_legend_handles_labels()
    if handles:
        panel.legend(
            handles, labels, loc="lower right", bbox_to_anchor=(1.0, legend_at), ncols=len(labels),
            frameon=False, fontsize=8.5, labelcolor=LIGHT["soft"], borderaxespad=0.1, handlelength=1.6,
            columnspacing=1.4,
        )  # fmt: skip


def time_axis(panel: Axes, duration_s: float, words: Callable[[float, float], str], label: str) -> None:
    """Ticks at round times; `words` gets each of them and the step between two, seconds."""
    fitting = [step for step in _TIME_STEPS_S if duration_s / step <= _MOST_TICKS]
    step = fitting[0] if fitting else 86_400 * math.ceil(duration_s / 86_400 / _MOST_TICKS)
    panel.set_xlim(0, max(duration_s, 1.0))
    panel.xaxis.set_major_locator(MultipleLocator(step))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda at, _: words(at, step)))
    panel.set_xlabel(label, color=LIGHT["soft"], fontsize=8.5)
