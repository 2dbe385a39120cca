"""JSON schemas of Kubernetes's own types, for the values that the chart hands on as they are.

Taken from the API definitions that `kubernetes-validate` carries, closed and without descriptions, so that a
misspelt field of a toleration is refused here: Helm only warns of what a cluster does not know.
"""

import json
from importlib import resources
from typing import Any

from tools.chart.settings_schema import merged

VERSION = "1.36.0"
_KEPT = frozenset(
    {"type", "properties", "required", "items", "additionalProperties", "enum", "oneOf", "anyOf", "$ref"}
)


class KubernetesTypes:
    """Collects the definitions that a schema refers to; `definitions` holds them and all they need."""

    def __init__(self) -> None:
        folder = resources.files("kubernetes_validate") / "kubernetes-json-schema"
        text = (folder / f"v{VERSION}-local-strict" / "_definitions.json").read_text(encoding="utf-8")
        self._known: dict[str, Any] = json.loads(text)["$defs"]
        self.definitions: dict[str, Any] = {}

    def of(self, name: str) -> dict[str, Any]:
        """A reference to the definition `name`, such as `io.k8s.api.core.v1.EnvVar`."""
        if name not in self.definitions:
            self.definitions[name] = {}  # types refer to themselves
            self.definitions[name] = self._plain(self._known[name])
        return {"$ref": f"#/definitions/{name}"}

    def list_of(self, name: str) -> dict[str, Any]:
        """A list of them."""
        return {"type": "array", "items": self.of(name)}

    def _plain(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return [self._plain(item) for item in schema]
        if not isinstance(schema, dict):
            return schema
        if "$ref" in schema:
            return self.of(schema["$ref"].rpartition("/")[2])
        plain: dict[str, Any] = {}
        for key, value in schema.items():
            if key == "properties":  # whose keys are names of fields
                plain[key] = {name: self._plain(field) for name, field in value.items()}
            elif key in _KEPT:
                plain[key] = self._plain(value)
        return merged(plain)
