"""The schemas of Kubernetes's own API, by version, with unknown fields refused."""

import json
from functools import cache
from importlib import resources
from typing import Any

import jsonschema_rs


def problems(document: dict[str, Any], version: str) -> list[str]:
    """What the API server of `version`, such as 1.36, would refuse, as `path: message`."""
    validator = _validator(version, document["apiVersion"], document["kind"])
    return [
        f"{'/'.join(str(part) for part in error.instance_path)}: {error.message}"
        for error in validator.iter_errors(document)
    ]


@cache
def _definitions(version: str) -> dict[str, Any]:
    folder = resources.files("kubernetes_validate") / "kubernetes-json-schema"
    text = (folder / f"v{version}.0-local-strict" / "_definitions.json").read_text(encoding="utf-8")
    definitions: dict[str, Any] = json.loads(text)["$defs"]
    return definitions


@cache
def _validator(version: str, api_version: str, kind: str) -> Any:
    group, _, name = api_version.rpartition("/")
    wanted = {"group": group, "version": name, "kind": kind}
    definitions = _definitions(version)
    found = [
        key
        for key, definition in definitions.items()
        if wanted in definition.get("x-kubernetes-group-version-kind", ())
    ]
    assert found, f"Kubernetes {version} has no {kind} of {api_version}"
    return jsonschema_rs.validator_for({"$ref": f"#/$defs/{found[0]}", "$defs": definitions})
