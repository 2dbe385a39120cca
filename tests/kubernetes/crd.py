"""KubeRay's CRD as a JSON schema without room for unknown fields, as `kubectl --validate=strict` sees it."""

from functools import cache
from typing import Any

import jsonschema_rs
import yaml

from tests.kubernetes.tools import CRDS

Document = dict[str, Any]


def closed(schema: Any) -> Any:
    """An openAPIV3Schema with unknown fields refused, wherever the API server would prune them."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {
        key: {name: closed(field) for name, field in value.items()} if key == "properties" else closed(value)
        for key, value in schema.items()
        if not key.startswith("x-kubernetes-") and key not in ("description", "format", "default")
    }
    if schema.get("x-kubernetes-int-or-string"):
        strict.pop("type", None)
        strict["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    pruned = not schema.get("x-kubernetes-preserve-unknown-fields")
    if schema.get("type") == "object" and "properties" in schema and pruned:
        strict.setdefault("additionalProperties", False)
    return strict


@cache
def ray_service_crd() -> Document:
    """The definition of `ray.io/v1` RayService."""
    text = (CRDS / "ray.io_rayservices.yaml").read_text()
    document = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    [version] = [found for found in document["spec"]["versions"] if found["name"] == "v1"]
    schema: Document = version["schema"]["openAPIV3Schema"]
    return schema


@cache
def ray_service_validator() -> Any:
    """Says what is wrong with a RayService."""
    schema = closed(ray_service_crd())
    schema["properties"]["metadata"] = {"type": "object"}  # the API server's own
    return jsonschema_rs.validator_for(schema)


def problems(ray_service: Document) -> list[str]:
    """What a strict API server would refuse, as `path: message`."""
    return [
        f"{'/'.join(str(part) for part in error.instance_path)}: {error.message}"
        for error in ray_service_validator().iter_errors(ray_service)
    ]
