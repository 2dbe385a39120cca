"""Latency against rate as a picture, the knee marked. Imports matplotlib: only `--png` needs it."""

from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from loadtests.drawing.palette import LIGHT
from replay.profile import Knee, Profile
from serve_app.cli import formats

_INCHES = (8.0, 5.2)
_DPI = 150
_HEADROOM = 2.5
"""Of the target; what lies higher is drawn at the upper edge, as an arrow."""


def write_knee_png(path: Path, profile: Profile, found: Knee) -> None:
    """Write it. Raises OSError if the file cannot be written."""
    with rc_context({"text.parse_math": False, "font.size": 9.5}):
        figure = knee_figure(profile.name, found)
        figure.savefig(path, format="png", metadata={"Software": "Tideserve"})


def knee_figure(name: str, found: Knee) -> Figure:
    """Two panels, TTFT and ITL, over the same rates; a dashed line is the target."""
    figure = Figure(figsize=_INCHES, dpi=_DPI, facecolor=LIGHT["panel"])
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.08)
    upper, lower = figure.subplots(2, 1, sharex=True)
    figure.suptitle(
        f"{formats.plain(name, 40)}: what one replica carries", x=0.02, ha="left", fontsize=13,
        fontweight="bold", color=LIGHT["ink"],
    )  # fmt: skip
    rates = [rate for rate, *_ in found.curve]
    panels = (
        (upper, "TTFT", [point[1] for point in found.curve], found.ttft_target_s, "ttft"),
        (lower, "ITL", [point[2] for point in found.curve], found.itl_target_s, "itl"),
    )
    for panel, title, latencies, target_s, colour in panels:
        _panel(panel, f"P{found.percentile} {title}", rates, latencies, target_s, LIGHT[colour])
        if found.rps:
            panel.axvline(found.rps, color=LIGHT["ok"], linewidth=1.6)
        panel.axvline(found.formula_rps, color=LIGHT["soft"], linewidth=1.0, linestyle=":")
    _name(upper, found)
    lower.set_xlabel(
        f"requests/s of {found.prompt_tokens} + {found.output_tokens} tokens",
        color=LIGHT["soft"],
        loc="right",
    )
    lower.set_xlim(0.0, 1.18 * max(*rates, found.formula_rps))  # room for a name on the right
    return figure


def _name(panel: Axes, found: Knee) -> None:
    """The two upright lines by name, each on the side where the other is not."""
    beyond = found.formula_rps > found.rps
    texts = [(found.formula_rps, f"formula {found.formula_rps:.3g}/s", LIGHT["soft"], beyond)]
    if found.rps:
        texts.append((found.rps, f"knee {found.rps:.3g}/s", LIGHT["ok"], not beyond))
    for at, text, colour, right in texts:
        panel.annotate(
            text, (at, 1.0), xycoords=("data", "axes fraction"), xytext=(4 if right else -4, 3),
            textcoords="offset points", ha="left" if right else "right", va="bottom", color=colour,
            fontsize=9, fontweight="bold",
        )  # fmt: skip


def _panel(
    panel: Axes,
    title: str,
    rates: list[float],
    latencies: list[float | None],
    target_s: float | None,
    colour: str,
) -> None:
    known = [latency for latency in latencies if latency is not None]
    top = _HEADROOM * target_s if target_s is not None else 1.1 * max(known, default=1.0)
    shown = [top if latency is None else min(latency, top) for latency in latencies]
    panel.plot(rates, shown, color=colour, linewidth=1.8, zorder=3)
    for rate, latency, value in zip(rates, latencies, shown, strict=True):
        beyond = latency is None or latency > top
        panel.plot(
            [rate], [value], marker="^" if beyond else "o", color=colour, markersize=7 if beyond else 5,
            zorder=4, clip_on=False,
        )  # fmt: skip
    if target_s is not None:
        panel.axhline(target_s, color=LIGHT["missed"], linewidth=1.1, linestyle=(0, (6, 4)))
        panel.text(
            0.006, target_s, f"target {formats.seconds(target_s)}", transform=panel.get_yaxis_transform(),
            ha="left", va="bottom", color=LIGHT["missed"], fontsize=9,
        )  # fmt: skip
    panel.set_ylim(0.0, top)
    panel.set_ylabel(title, color=LIGHT["soft"])
    panel.yaxis.set_major_formatter(
        FuncFormatter(lambda seconds, _: formats.seconds(seconds) if seconds else "0")
    )
    panel.tick_params(colors=LIGHT["soft"], length=0, labelsize=9)
    panel.grid(color=LIGHT["grid"], linewidth=0.8)
    panel.set_axisbelow(True)
    for spine in panel.spines.values():
        spine.set_visible(False)
