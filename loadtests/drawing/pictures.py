"""PNG files of panels over time. Imports matplotlib, which takes half a second."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator

from loadtests.drawing.palette import LIGHT

Floats = npt.NDArray[np.float64]
_TIME_STEPS_S = (1, 5, 15, 60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
_MOST_TICKS = 14
_HATCHES = {"starting": "/////", "pending": ".....", "draining": "\\\\\\\\"}
DPI = 150


def write_pictures(
    folder_or_path: str | Path, figures: Mapping[str, Callable[[], Figure]]
) -> tuple[Path, ...]:
    """Draw `figures`, by name, and write them; return their paths.

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


def blank(inches: tuple[float, float], title: str = "", nothing: str = "") -> Figure:
    """Return a figure with a title, and with what is said in place of panels where there are none."""
    figure = Figure(figsize=inches, dpi=DPI, facecolor=LIGHT["panel"])
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.06)
    if title:
        figure.suptitle(title, fontsize=13.5, fontweight="bold", color=LIGHT["ink"], x=0.01, ha="left")
    if nothing:
        figure.text(0.5, 0.5, nothing, ha="center", color=LIGHT["soft"])
    return figure


def panels_of(figure: Figure, heights: Sequence[float]) -> list[Axes]:
    """Return panels below each other, of these relative heights, with one axis of time."""
    return list(figure.subplots(len(heights), 1, sharex=True, gridspec_kw={"height_ratios": heights}))


def steps(
    panel: Axes,
    at: Floats,
    values: Floats,
    name: str,
    width: float,
    label: str | None = None,
    dashes: str = "-",
) -> None:
    """Draw a line in the palette's colour `name`; each value holds until the next one's time."""
    panel.step(at, values, where="post", color=LIGHT[name], label=label, linewidth=width, linestyle=dashes)


def stack(panel: Axes, at: Floats, layers: Iterable[tuple[str, str, Floats]]) -> Floats:
    """Draw layers, each a label, a colour's name and its values, on top of each other; return their sums."""
    low = np.zeros(len(at))
    for label, name, values in layers:
        high: Floats = low + np.nan_to_num(values)
        hatch = _HATCHES.get(label)
        if np.any(high > low):
            panel.fill_between(
                at, low, high, step="post", facecolor="none" if hatch else LIGHT[name], hatch=hatch,
                edgecolor=LIGHT[name], alpha=0.8 if hatch else 0.3, linewidth=0, label=label,
            )  # fmt: skip
        low = high
    return low


def replica_panel(panel: Axes, at: Floats, counts: Mapping[str, Floats], room: float) -> float:
    """Draw replicas by state, those wanted, and the target; return the top, above `room` for marks."""
    states = (("ready", "ready"), ("starting", "starting"), ("pending", "other"), ("draining", "draining"))
    up = stack(panel, at, [(state, name, counts[state]) for state, name in states if state in counts])
    steps(panel, at, counts["wanted"], "wanted", 1.0, "wanted", ":")
    steps(panel, at, counts["ready"], "ready", 0.9)
    steps(panel, at, counts["target"], "target", 1.3, "target")
    top = float(np.nanmax([up.max(), *counts["wanted"], *counts["target"], 1.0])) * room
    panel.set_ylim(0, top)
    panel.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    return top


def frame(panel: Axes, title: str, legend_at: float = 0.97) -> None:
    """Add the title, the grid and a legend, at that share of the height, to a panel that is drawn."""
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
    """Put ticks at round times; `words` gets each of them and the step between two, seconds."""
    fitting = [step for step in _TIME_STEPS_S if duration_s / step <= _MOST_TICKS]
    step = fitting[0] if fitting else 86_400 * math.ceil(duration_s / 86_400 / _MOST_TICKS)
    panel.set_xlim(0, max(duration_s, 1.0))
    panel.xaxis.set_major_locator(MultipleLocator(step))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda at, _: words(at, step)))
    panel.set_xlabel(label, color=LIGHT["soft"], fontsize=8.5)
