"""A dashboard: rows of panels laid out on Grafana's grid, its variables, annotations and links."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tools.dashboards.panels import SOURCE, Panel

COLUMNS = 24
_SCHEMA = 39
"""Grafana 11's; later ones migrate it when they load it."""
_TAG = "tideserve"


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading, side by side as long as they fit. A row without a title has no heading."""

    title: str
    panels: tuple[Panel, ...]
    for_each: str = ""
    """A variable; the row is there once for each of its values."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """Marks in time, wherever `expr` is above 0. Texts may name labels as `{{label}}`."""

    name: str
    expr: str
    title: str
    text: str
    colour: str


@dataclass(frozen=True, slots=True)
class Price:
    """A number the reader may change, which the chart sets when it makes the ConfigMap."""

    name: str
    label: str
    placeholder: str


@dataclass(frozen=True, slots=True)
class Dashboard:
    """One dashboard; `name` is the end of its uid, and its file's name."""

    name: str
    title: str
    text: str
    rows: tuple[Row, ...]
    annotations: tuple[Annotation, ...] = ()
    prices: tuple[Price, ...] = ()
    shown: str = "now-1h"
    """How far back it begins."""
    refresh: str = "10s"

    def document(self) -> dict[str, Any]:
        """Grafana's JSON."""
        return {
            "uid": f"tideserve-{self.name}",
            "title": self.title,
            "description": self.text,
            "tags": [_TAG],
            "schemaVersion": _SCHEMA,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "refresh": self.refresh,
            "time": {"from": self.shown, "to": "now"},
            "timezone": "browser",
            "timepicker": {},
            "weekStart": "",
            "links": [_LINKS],
            "templating": {"list": [*_VARIABLES, *map(_price, self.prices)]},
            "annotations": {"list": [_BUILT_IN, *map(_annotation, self.annotations)]},
            "panels": list(self._panels()),
        }

    def _panels(self) -> Iterator[dict[str, Any]]:
        number, top = 1, 0
        for row in self.rows:
            if row.title:
                yield _heading(row, number, top)
                number, top = number + 1, top + 1
            left = lowest = 0
            for panel in row.panels:
                if left + panel.width > COLUMNS:
                    left, top, lowest = 0, top + lowest, 0
                yield panel.document(number, left, top)
                number, left, lowest = number + 1, left + panel.width, max(lowest, panel.height)
            top += lowest


def _heading(row: Row, number: int, top: int) -> dict[str, Any]:
    heading: dict[str, Any] = {
        "id": number,
        "type": "row",
        "title": row.title,
        "collapsed": False,
        "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
        "panels": [],
    }
    return {**heading, "repeat": row.for_each} if row.for_each else heading


def _annotation(mark: Annotation) -> dict[str, Any]:
    return {
        "name": mark.name,
        "datasource": SOURCE,
        "enable": True,
        "hide": False,
        "iconColor": mark.colour,
        "target": {"refId": "Anno", "expr": mark.expr, "interval": ""},
        "titleFormat": mark.title,
        "textFormat": mark.text,
        "tagKeys": "",
        "useValueForTime": False,
    }


def _price(price: Price) -> dict[str, Any]:
    value = {"selected": True, "text": price.placeholder, "value": price.placeholder}
    return {
        "type": "textbox",
        "name": price.name,
        "label": price.label,
        "query": price.placeholder,
        "current": value,
        "options": [value],
        "hide": 0,
        "skipUrlSync": False,
    }


def _choice(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": SOURCE,
        "definition": query,
        "query": {"qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "options": [],
        "regex": "",
        "hide": 0,
        "skipUrlSync": False,
    }


# Every model has a target at any time, at zero replicas too: what engines export would be gone then.
_KNOWN = "llm_autoscaling_target_replicas"
_VARIABLES = (
    {
        "type": "datasource",
        "name": "datasource",
        "label": "Data source",
        "query": "prometheus",
        "current": {},
        "options": [],
        "regex": "",
        "refresh": 1,
        "multi": False,
        "includeAll": False,
        "hide": 0,
        "skipUrlSync": False,
    },
    _choice("namespace", "Namespace", f"label_values({_KNOWN}, namespace)"),
    _choice("model", "Model", f'label_values({_KNOWN}{{namespace=~"$namespace"}}, model)'),
)
_BUILT_IN = {
    "builtIn": 1,
    "datasource": {"type": "grafana", "uid": "-- Grafana --"},
    "enable": True,
    "hide": True,
    "iconColor": "rgba(0, 211, 255, 1)",
    "name": "Annotations & Alerts",
    "type": "dashboard",
}
_LINKS = {
    "type": "dashboards",
    "title": "Tideserve",
    "tags": [_TAG],
    "asDropdown": False,
    "icon": "external link",
    "includeVars": True,
    "keepTime": True,
    "targetBlank": False,
    "tooltip": "",
    "url": "",
}
