"""A timeline of one start of each system. Imports matplotlib, which takes half a second."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.cold_start.measure import Measured
from benchmarks.cold_start.phases import ENGINE_CORE, FRONT_END, REQUEST, WAITS, WORKER, WORKER_WAITS, Phase
from benchmarks.cold_start.report import Report
from benchmarks.cold_start.systems import SYSTEMS
from loadtests.drawing.palette import LIGHT
from loadtests.drawing.pictures import blank, frame

_COLOURS = {REQUEST: "held", FRONT_END: "ready", ENGINE_CORE: "ok", WORKER: "wanted"}
_LINE_INCHES = 0.21
_LEAST_S = 0.005
"""A shorter phase gets no line."""
_SEEN = 0.005
"""The share of the whole below which a part of a phase is left out, but for the longest."""


def timeline(report: Report, replicas: int) -> Figure:
    """Return a picture with a panel for each system that has a traced start of so many replicas.

    Of several starts the median one is drawn, and of several replicas the last one to answer.
    """
    shown = [
        (system, _median(traced))
        for system in report.systems
        if (traced := report.traced(system, replicas)) and any(one.phases for one in traced)
    ]
    lines = [_lines(_last(start)) for _, start in shown]
    heights = [len(each) for each in lines]
    figure = blank((9.0, 0.75 * len(shown) + _LINE_INCHES * sum(heights)))
    panels = figure.subplots(len(shown), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    for panel, (system, start), phases in zip(panels, shown, lines, strict=True):
        _draw(panel, phases)
        frame(
            panel,
            f"{SYSTEMS[system].title.replace('`', '')}: {start.all_answered_s:.1f} s to the first token",
        )
    scale = "; each panel has its own scale" if len(shown) > 1 else ""
    panels[-1].set_xlabel(f"seconds{scale}", color=LIGHT["soft"], fontsize=8.5)
    return figure


def _median(starts: Sequence[Measured]) -> Measured:
    return sorted(starts, key=lambda start: start.all_answered_s)[(len(starts) - 1) // 2]


def _last(start: Measured) -> Sequence[Phase]:
    return max(start.phases, key=lambda phases: max(phase.end for phase in phases))


def _lines(phases: Sequence[Phase]) -> dict[tuple[str, str], list[Phase]]:
    """Return a line for each phase of each row, in the order in which they began."""
    lines: dict[tuple[str, str], list[Phase]] = {}
    for phase in sorted(phases, key=lambda phase: phase.begin):
        lines.setdefault((phase.row, phase.name), []).append(phase)
    return {key: parts for key, parts in lines.items() if sum(part.seconds for part in parts) >= _LEAST_S}


def _draw(panel: Axes, lines: dict[tuple[str, str], list[Phase]]) -> None:
    end = max(part.end for parts in lines.values() for part in parts)
    for at, ((row, name), parts) in enumerate(lines.items()):
        colour = LIGHT["line"] if name in (WAITS, WORKER_WAITS) else LIGHT[_COLOURS[row]]
        longest = max(parts, key=lambda part: part.seconds)
        seen = [part for part in parts if part is longest or part.seconds > _SEEN * end]
        for part in seen:
            panel.barh(at, part.seconds, left=part.begin, height=0.72, color=colour)
        seconds = f"{sum(part.seconds for part in parts):.2f}"
        right = seen[-1].end + 0.006 * end
        panel.text(right, at, seconds, va="center", fontsize=8, color=LIGHT["soft"])
    panel.set_yticks(range(len(lines)), [f"{row}: {name}" for row, name in lines])
    panel.set_ylim(len(lines) - 0.4, -0.6)
    panel.set_xlim(0, end * 1.08)
