"""What Grafana would ask Prometheus for: every query of the chart's dashboards, its variables replaced."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kubernetes.tools import CHART

FOLDER = CHART / "files/dashboards"
PRICE_PLACEHOLDER = "__GPU_HOUR_PRICE__"
_LABEL_VALUES = re.compile(r"label_values\((?P<series>.*), (?P<label>\w+)\)")


@dataclass(frozen=True, slots=True)
class Values:
    """What stands for Grafana's variables. Windows are seconds."""

    model: str = ".*"
    namespace: str = ".*"
    interval_s: int = 15
    """`$__interval`: from one point of a graph to the next."""
    rate_interval_s: int = 60
    """`$__rate_interval`: with a scrape every 15 s."""
    range_s: int = 3600
    """`$__range`: the time shown."""
    gpu_hour_price: float = 2

    def put_into(self, expr: str) -> str:
        """`expr` with them."""
        # In this order: the name of one is the beginning of another's.
        for name, value in (
            ("$__rate_interval_ms", str(1000 * self.rate_interval_s)),
            ("$__rate_interval", f"{self.rate_interval_s}s"),
            ("$__interval", f"{self.interval_s}s"),
            ("$__range", f"{self.range_s}s"),
            ("$gpu_hour_price", f"{self.gpu_hour_price:g}"),
            ("$namespace", self.namespace),
            ("$model", self.model),
        ):
            expr = expr.replace(name, value)
        return expr


@dataclass(frozen=True, slots=True)
class DashboardQuery:
    """One query, and where it is from."""

    dashboard: str
    """The file's name without `.json`."""
    place: str
    """The title of its panel, or `variable <name>`, or `annotation <name>`."""
    legend: str
    """Grafana's template of a series's name; an annotation's title and text."""
    expr: str
    over_range: bool
    """Asked once for the end of the time shown, instead of for each point of a graph."""

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.place}: {self.legend}"


def documents(folder: Path = FOLDER) -> dict[str, dict[str, Any]]:
    """The dashboards' JSON, by their names."""
    return {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))}


def queries(values: Values | None = None, folder: Path = FOLDER) -> list[DashboardQuery]:
    """Every query of every panel, annotation and variable, with `values` for the variables in it."""
    values = values or Values()
    return [
        DashboardQuery(name, place, legend, values.put_into(expr), over_range)
        for name, document in documents(folder).items()
        for place, legend, expr, over_range in _queries(document)
    ]


def _queries(document: dict[str, Any]) -> Iterator[tuple[str, str, str, bool]]:
    for panel in document["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["legendFormat"], target["expr"], target["instant"]
    for mark in document["annotations"]["list"]:
        if "target" in mark:
            text = f"{mark['titleFormat']} {mark['textFormat']}"
            yield f"annotation {mark['name']}", text, mark["target"]["expr"], False
    for variable in document["templating"]["list"]:
        if variable["type"] != "query":
            continue
        found = _LABEL_VALUES.fullmatch(variable["query"]["query"])
        assert found, f"variable {variable['name']}: {variable['query']['query']} is not label_values(...)"
        expr = f"count by ({found['label']}) ({found['series']})"
        yield f"variable {variable['name']}", f"{{{{{found['label']}}}}}", expr, True
