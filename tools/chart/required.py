"""Which values cannot be taken away: `null` in somebody's values removes the chart's default.

So does `helm upgrade --reuse-values` with a newer chart, whose new values are not among the old ones. Without
the default a number would be rendered as zero, and a section as an error of a template that says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]


def require(schema: Schema, defaults: Mapping[str, Any]) -> None:
    """Makes `schema` ask for what the templates count on, in it and in all sections below."""
    properties = schema.get("properties", {})
    wanted = [name for name, below in properties.items() if _counted_on(below, defaults.get(name))]
    if wanted:
        schema["required"] = wanted
    for name in wanted:
        if isinstance(defaults[name], Mapping):
            require(properties[name], defaults[name])


def _counted_on(schema: Schema, default: Any) -> bool:
    """Numbers, switches, sections, text that may not be empty; not lists, labels or Kubernetes's types."""
    if "$ref" in schema or default is None or isinstance(default, list):
        return False
    if isinstance(default, Mapping):
        return bool(default) and schema.get("additionalProperties") != {"type": "string"}
    if isinstance(default, str):
        return not _may_be_empty(schema)
    return True


def _may_be_empty(schema: Schema) -> bool:
    if "enum" in schema:
        return "" in schema["enum"]
    if "pattern" in schema:
        return bool(schema["pattern"].startswith("^$|"))
    return "minLength" not in schema
