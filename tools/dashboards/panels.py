"""Panels, and the JSON Grafana wants of them. Only kinds that come with Grafana."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tools.dashboards.targets import NEUTRAL, Step

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
NO_TRAFFIC = "no traffic"
TOKENS_PER_SECOND = "si:tok/s"
PER_MINUTE = "suffix:/min"

Kind = Literal["stat", "timeseries", "state-timeline", "bargauge"]


@dataclass(frozen=True, slots=True)
class Query:
    """A query, and the name of each series it gives, where `{{label}}` stands for a label's value."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Line:
    """How series of one name are drawn, where that differs from the others of their panel."""

    colour: str | None = None
    dashed: bool = False
    """A line above what is stacked, itself neither stacked nor filled."""
    unit: str | None = None
    """On an axis of its own at the right, and not stacked either."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Args:
        title: A few words.
        text: How to read it, and what to do about it.
        unit: Grafana's name of it.
        queries: One or several.
        kind: `stat` and `bargauge` show one number a series, the others its course.
        width: Of 24 columns.
        height: In rows of 30 pixels.
        over_range: The queries look at the time shown as a whole and are asked once, at its end.
        steps: Colours of values; in a graph, a dashed line at each value.
        lines: Looks of series, by their names.
        stacked: Series add up to something.
        points: Of rare events, which no line joins.
        log: A logarithmic axis, for what goes from milliseconds to minutes.
        decimals: Digits after the point; Grafana's choice if None.
        maximum: End of the axis.
        empty: What is said when there is nothing to show.
    """

    title: str
    text: str
    unit: str
    queries: tuple[Query, ...]
    kind: Kind = "timeseries"
    width: int = 8
    height: int = 8
    over_range: bool = False
    steps: tuple[Step, ...] = NEUTRAL
    lines: Mapping[str, Line] = field(default_factory=dict)
    stacked: bool = False
    points: bool = False
    log: bool = False
    decimals: int | None = None
    maximum: float | None = None
    empty: str = NO_TRAFFIC

    def document(self, number: int, x: int, y: int) -> dict[str, Any]:
        """Grafana's JSON of it, as panel `number` at a place of the grid."""
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.text,
            "datasource": SOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "targets": [self._target(i, query) for i, query in enumerate(self.queries)],
            "fieldConfig": {"defaults": self._defaults(), "overrides": self._overrides()},
            "options": _OPTIONS[self.kind],
        }

    def _target(self, index: int, query: Query) -> dict[str, Any]:
        return {
            "refId": chr(ord("A") + index),
            "datasource": SOURCE,
            "editorMode": "code",
            "expr": query.expr,
            "legendFormat": query.legend,
            "instant": self.over_range,
            "range": not self.over_range,
        }

    def _defaults(self) -> dict[str, Any]:
        defaults: dict[str, Any] = {
            "unit": self.unit,
            "noValue": self.empty,
            "color": {"mode": "thresholds" if self.kind == "stat" else "palette-classic-by-name"},
            "thresholds": {
                "mode": "absolute",
                "steps": [{"color": step.colour, "value": step.value} for step in self.steps],
            },
            "custom": self._custom(),
        }
        if not self.log:
            defaults["min"] = 0
        if self.decimals is not None:
            defaults["decimals"] = self.decimals
        if self.maximum is not None:
            defaults["max"] = self.maximum
        return defaults

    def _custom(self) -> dict[str, Any]:
        if self.kind == "state-timeline":
            return {"fillOpacity": 85, "lineWidth": 0}
        if self.kind != "timeseries":
            return {}
        return {
            "drawStyle": "points" if self.points else "line",
            "lineInterpolation": "stepAfter" if self.stacked else "linear",
            "lineWidth": 1 if self.stacked else 2,
            "fillOpacity": 55 if self.stacked else 0,
            "stacking": {"mode": "normal" if self.stacked else "none", "group": "A"},
            "showPoints": "auto",
            "pointSize": 7 if self.points else 4,
            "scaleDistribution": {"type": "log", "log": 10} if self.log else {"type": "linear"},
            "spanNulls": False,
            "thresholdsStyle": {"mode": "dashed" if len(self.steps) > 1 else "off"},
        }

    def _overrides(self) -> list[dict[str, Any]]:
        return [
            {"matcher": {"id": "byName", "options": name}, "properties": _properties(line)}
            for name, line in self.lines.items()
        ]


def _properties(line: Line) -> list[dict[str, Any]]:
    found: dict[str, Any] = {}
    if line.colour is not None:
        found["color"] = {"mode": "fixed", "fixedColor": line.colour}
    if line.dashed:
        found["custom.drawStyle"] = "line"
        found["custom.lineStyle"] = {"fill": "dash", "dash": [8, 5]}
        found["custom.lineWidth"] = 2
        found["custom.fillOpacity"] = 0
        found["custom.stacking"] = {"mode": "none", "group": "B"}
    if line.unit is not None:
        found["unit"] = line.unit
        found["custom.axisPlacement"] = "right"
        found["custom.fillOpacity"] = 0
        found["custom.lineWidth"] = 2
        found["custom.stacking"] = {"mode": "none", "group": "B"}
    return [{"id": name, "value": value} for name, value in found.items()]


def coloured(colours: Mapping[str, str]) -> dict[str, Line]:
    """Lines that differ by colour only."""
    return {name: Line(colour) for name, colour in colours.items()}


def stat(
    title: str,
    expr: str,
    unit: str,
    text: str,
    steps: tuple[Step, ...] = NEUTRAL,
    *,
    width: int,
    empty: str,
    over_range: bool = False,
    decimals: int | None = None,
) -> Panel:
    """One number, for the top row; `empty` is what it says where there is none."""
    return Panel(
        title,
        text,
        unit,
        (Query(expr, title),),
        kind="stat",
        width=width,
        height=4,
        over_range=over_range,
        decimals=decimals,
        empty=empty,
        steps=steps,
    )


_LAST = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_LEGEND = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
_OPTIONS: Mapping[Kind, Mapping[str, Any]] = {
    "stat": {
        "reduceOptions": _LAST,
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "value",
        "wideLayout": True,
    },
    "timeseries": {"legend": _LEGEND, "tooltip": {"mode": "multi", "sort": "desc"}},
    "state-timeline": {
        "mergeValues": True,
        "showValue": "never",
        "alignValue": "left",
        "rowHeight": 0.8,
        "legend": {**_LEGEND, "showLegend": False},
        "tooltip": {"mode": "single", "sort": "none"},
    },
    "bargauge": {
        "reduceOptions": _LAST,
        "orientation": "horizontal",
        "displayMode": "basic",
        "valueMode": "color",
        "namePlacement": "auto",
        "showUnfilled": True,
        "sizing": "auto",
        "minVizWidth": 8,
        "minVizHeight": 16,
    },
}
