"""Cost against attainment of all policies as SVG, one panel for each window."""

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

from benchmarks.autoscaling.results import BURSTY_GOAL, SMOOTH_GOAL, Results, family
from benchmarks.autoscaling.windows import Window
from replay.defaults import ORACLE, OURS, STATIC

_COLUMNS = 3
_WIDTH, _HEIGHT = 400, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 20, 40, 45
_ATTAINMENTS = (0.0, 0.5, 0.9, 0.95, 0.99, 1.0)
_RATIOS = (0.1, 0.2, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0)
_COLOURS = {
    OURS: "#0a6b8f", ORACLE: "#1b2733", STATIC: "#7a8794", "ray": "#c2452d", "kpa": "#2f8f5b",
    "hpa:ongoing": "#8a5fbf", "hpa:waiting": "#d08b1d", "apa": "#c75a9b", "dynamo": "#5b7f1f",
    "wva": "#4a6fd0",
}  # fmt: skip
_NAMES = {OURS: "Tideserve", STATIC: "static, in hindsight"}
_HOLLOW = (ORACLE, STATIC)
_STYLE = (
    "text{font:12px sans-serif;fill:#3e4c59}"
    ".grid{stroke:#e4e8ec}.goal{stroke:#2f8f5b;stroke-dasharray:6 4}.line{fill:none;stroke-width:1}"
)


def draw(results: Results) -> str:
    """The medians of all runs in the usual circumstances. The last panel is the key."""
    panels = len(results.windows) + 1
    columns = min(_COLUMNS, panels)
    width, height = columns * _WIDTH, math.ceil(panels / columns) * _HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}"><style>{_STYLE}</style>'
        '<rect width="100%" height="100%" fill="#fff"/>'
    ]
    drawn: dict[str, None] = {}
    for number, window in enumerate(results.windows):
        points = _points(results, window)
        drawn |= dict.fromkeys(points)
        parts += _at(number, columns, _panel(window, points))
    parts += _at(panels - 1, columns, _key(sorted(drawn, key=list(_COLOURS).index)))
    return "\n".join([*parts, "</svg>"]) + "\n"


def write_picture(results: Results, path: Path) -> None:
    """Write the picture. Raises OSError if that fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(draw(results), encoding="utf-8")


def _at(number: int, columns: int, parts: Sequence[str]) -> list[str]:
    x, y = number % columns * _WIDTH, number // columns * _HEIGHT
    return [f'<g transform="translate({x},{y})">', *parts, "</g>"]


def _points(results: Results, window: Window) -> dict[str, list[tuple[float, float]]]:
    """(GPU-seconds over the oracle's, attainment) of each setting, by policy; nothing without an oracle."""
    found: dict[str, list[tuple[float, float]]] = {}
    for policy in (*results.peers(), STATIC, ORACLE, OURS):
        cost, attainment = results.ratio(window, policy, ORACLE), results.spread(window, policy, "attainment")
        if cost is not None and attainment is not None and family(policy) in _COLOURS:
            found.setdefault(family(policy), []).append((cost.median, attainment.median))
    return {policy: sorted(points) for policy, points in found.items()}


def _panel(window: Window, points: dict[str, list[tuple[float, float]]]) -> list[str]:
    ratios = [ratio for settings in points.values() for ratio, _ in settings]
    low, high = min([*ratios, 0.9]) / 1.15, max([*ratios, 1.6]) * 1.15
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def x(ratio: float) -> float:
        return _LEFT + math.log(ratio / low) / math.log(high / low) * (right - _LEFT)

    def y(attainment: float) -> float:
        # By nines: policies differ in the last percents.
        return bottom - math.log10(1.002 - attainment) / math.log10(0.002) * (bottom - _TOP)

    goal = SMOOTH_GOAL if window.smooth else BURSTY_GOAL
    kind = "smooth" if window.smooth else "bursty"
    parts = [_text(_LEFT, 22, f"{window.name}, {kind}", "start")]
    for share in _ATTAINMENTS:
        parts.append(f'<path class="grid" d="M{_LEFT} {y(share):.1f}H{right}"/>')
        parts.append(_text(_LEFT - 6, y(share) + 4, f"{100 * share:g} %", "end"))
    for ratio in _RATIOS:
        if low <= ratio <= high:
            parts.append(f'<path class="grid" d="M{x(ratio):.1f} {_TOP}V{bottom}"/>')
            parts.append(_text(x(ratio), bottom + 18, f"{ratio:g}x", "middle"))
    parts.append(f'<path class="goal" d="M{_LEFT} {y(goal):.1f}H{right}"/>')
    parts.append(_text((_LEFT + right) / 2, _HEIGHT - 8, "GPU-seconds over the oracle's", "middle"))
    for policy, settings in points.items():
        places = [(x(ratio), y(attainment)) for ratio, attainment in settings]
        line = " ".join(f"{left:.1f},{top:.1f}" for left, top in places)
        parts.append(f'<polyline class="line" stroke="{_COLOURS[policy]}" points="{line}"/>')
        parts += [_mark(policy, left, top) for left, top in places]
    return parts


def _mark(policy: str, x: float, y: float) -> str:
    colour = _COLOURS[policy]
    fill = "#fff" if policy in _HOLLOW else colour
    place = f'cx="{x:.1f}" cy="{y:.1f}" r="{7 if policy == OURS else 4.5}"'
    return f'<circle {place} fill="{fill}" stroke="{colour}" stroke-width="2"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _key(policies: Sequence[str]) -> list[str]:
    parts = []
    for number, policy in enumerate(policies):
        top = _TOP + 20 * number
        parts += [_mark(policy, _LEFT, top), _text(_LEFT + 14, top + 4, _NAMES.get(policy, policy), "start")]
    top = _TOP + 20 * len(policies)
    goal = f'<path class="goal" d="M{_LEFT - 8} {top}h16"/>'
    return [*parts, goal, _text(_LEFT + 14, top + 4, "goal", "start")]
