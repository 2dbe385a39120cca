"""JSON schemas of Kubernetes types, for the values that the chart hands on as they are.

The types come from the API definitions that `kubernetes-validate` carries. They are closed, so that a
misspelt field of a toleration is refused here: Helm only warns about a field that the cluster does not know.
`_BOUNDS` adds rules that the API server enforces and its schema does not state.
"""

import json
from importlib import resources
from typing import Any

from tools.chart.conditions import Schema, choice, when
from tools.chart.settings_schema import merged

VERSION = "1.36.0"
_KEPT = frozenset(
    {"type", "properties", "required", "items", "additionalProperties", "enum", "oneOf", "anyOf", "$ref"}
)
_CORE = "io.k8s.api.core.v1."
_NETWORKING = "io.k8s.api.networking.v1."
_META = "io.k8s.apimachinery.pkg.apis.meta.v1."

_ABSENT: Schema = {"maxLength": 0}
_ESCALATES: Schema = {"allowPrivilegeEscalation": {"enum": [True]}}
_ADDS_SYS_ADMIN: Schema = {
    "type": "object",
    "properties": {"add": {"type": "array", "contains": {"const": "SYS_ADMIN"}}},
    "required": ["add"],
}
_USER: Schema = {"minimum": 0}
_MODE: Schema = {"properties": {"defaultMode": {"minimum": 0, "maximum": 0o777}}}
_WEIGHT: Schema = {"properties": {"weight": {"minimum": 1, "maximum": 100}}}


_HANDLERS = ("exec", "grpc", "httpGet", "tcpSocket")
_PORT: Schema = {"minimum": 1, "maximum": 65535}


def _one_of(*names: str) -> Schema:
    """Return the rules of fields of which a mapping has exactly one: `oneOf` would report each."""
    none: Schema = {"type": "null"}
    return {
        "dependencies": {
            name: {"properties": dict.fromkeys(names[index:], none)}
            for index, name in enumerate(names[:-1], 1)
        },
        "if": {"anyOf": [{"required": [name]} for name in names]},
        "else": {"required": [names[0]]},
    }


def _expression(*comparisons: str) -> Schema:
    """Return the rules of an expression: its operators, and how many values go with each."""
    values: Schema = {"values": {"type": "array", "minItems": 1}}
    number: Schema = {"values": {"type": "array", "minItems": 1, "maxItems": 1}}
    rules = [
        when({"operator": {"enum": ["In", "NotIn"]}}, values),
        when({"operator": {"enum": ["Exists", "DoesNotExist"]}}, {"values": {"maxItems": 0}}, required=False),
    ]
    if comparisons:
        rules.append(when({"operator": {"enum": [*comparisons]}}, number))
    operators = choice("In", "NotIn", "Exists", "DoesNotExist", *comparisons)
    return {"properties": {"operator": operators}, "allOf": rules}


_BOUNDS: dict[str, Schema] = {
    f"{_CORE}Toleration": {
        "properties": {
            "operator": choice("Exists", "Equal", ""),
            "effect": choice("NoSchedule", "PreferNoSchedule", "NoExecute", ""),
        },
        "allOf": [
            {
                "if": {"properties": {"operator": {"const": "Exists"}}, "required": ["operator"]},
                "then": {"properties": {"value": _ABSENT}},
                "else": {"properties": {"key": {"type": "string", "minLength": 1}}, "required": ["key"]},
            },
            {
                "if": {"required": ["tolerationSeconds"]},
                "then": {"properties": {"effect": {"const": "NoExecute"}}, "required": ["effect"]},
            },
        ],
    },
    f"{_CORE}NodeSelector": {"properties": {"nodeSelectorTerms": {"minItems": 1}}},
    f"{_CORE}NodeSelectorRequirement": _expression("Gt", "Lt"),
    f"{_META}LabelSelectorRequirement": _expression(),
    f"{_CORE}PreferredSchedulingTerm": _WEIGHT,
    f"{_CORE}WeightedPodAffinityTerm": _WEIGHT,
    f"{_CORE}PodAffinityTerm": {"properties": {"topologyKey": {"minLength": 1}}},
    f"{_CORE}TopologySpreadConstraint": {
        "properties": {
            "maxSkew": {"minimum": 1},
            "whenUnsatisfiable": choice("DoNotSchedule", "ScheduleAnyway"),
        }
    },
    f"{_CORE}EnvVar": {
        "if": {"required": ["valueFrom"]},
        "then": {"properties": {"value": _ABSENT}},
    },
    f"{_CORE}EnvVarSource": {"minProperties": 1, "maxProperties": 1},
    f"{_CORE}EnvFromSource": _one_of("secretRef", "configMapRef"),
    f"{_CORE}Probe": _one_of(*_HANDLERS),
    f"{_CORE}LifecycleHandler": {"minProperties": 1, "maxProperties": 1},
    f"{_CORE}Container": {
        "properties": {
            "image": {"type": "string", "minLength": 1},
            "imagePullPolicy": choice("Always", "IfNotPresent", "Never"),
        },
        "required": ["name", "image"],
    },
    f"{_CORE}ContainerPort": {
        "properties": {"containerPort": _PORT, "hostPort": _PORT, "protocol": choice("TCP", "UDP", "SCTP")}
    },
    # A name and one source.
    f"{_CORE}Volume": {"minProperties": 2, "maxProperties": 2},
    f"{_CORE}ConfigMapVolumeSource": _MODE,
    f"{_CORE}SecretVolumeSource": _MODE,
    f"{_CORE}HostPathVolumeSource": {
        "properties": {
            "type": choice(
                "Directory",
                "DirectoryOrCreate",
                "File",
                "FileOrCreate",
                "Socket",
                "CharDevice",
                "BlockDevice",
                "",
            )
        }
    },
    f"{_CORE}SeccompProfile": {
        "properties": {"type": choice("RuntimeDefault", "Unconfined", "Localhost")},
        "if": {"properties": {"type": {"const": "Localhost"}}, "required": ["type"]},
        "then": {
            "properties": {"localhostProfile": {"type": "string", "minLength": 1}},
            "required": ["localhostProfile"],
        },
        "else": {"properties": {"localhostProfile": _ABSENT}},
    },
    f"{_CORE}PodSecurityContext": {
        "properties": {
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "fsGroupChangePolicy": choice("OnRootMismatch", "Always"),
            "supplementalGroups": {"items": {"type": ["integer", "null"]} | _USER},
        }
    },
    f"{_CORE}SecurityContext": {
        "properties": {"runAsUser": _USER},
        "allOf": [
            when({"privileged": {"const": True}}, _ESCALATES, required=False),
            when(
                {"capabilities": _ADDS_SYS_ADMIN},
                _ESCALATES,
                required=False,
            ),
        ],
    },
    f"{_NETWORKING}NetworkPolicyPeer": {
        "minProperties": 1,
        "if": {"required": ["ipBlock"]},
        "then": {"maxProperties": 1},
    },
    f"{_NETWORKING}NetworkPolicyPort": {
        "properties": {"protocol": choice("TCP", "UDP", "SCTP"), "endPort": {"minimum": 1, "maximum": 65535}}
    },
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"minimum": 1, "maximum": 65535},
}


class KubernetesTypes:
    """Collects the definitions that a schema refers to; `definitions` holds them and all they need."""

    def __init__(self) -> None:
        folder = resources.files("kubernetes_validate") / "kubernetes-json-schema"
        text = (folder / f"v{VERSION}-local-strict" / "_definitions.json").read_text(encoding="utf-8")
        self._known: dict[str, Any] = json.loads(text)["$defs"]
        self.definitions: dict[str, Any] = {}

    def of(self, name: str) -> Schema:
        """A reference to the definition `name`, such as `io.k8s.api.core.v1.EnvVar`."""
        if name not in self.definitions:
            self.definitions[name] = {}  # types refer to themselves
            self.definitions[name] = _bounded(self._plain(self._known[name]), _BOUNDS.get(name, {}))
        return {"$ref": f"#/definitions/{name}"}

    def list_of(self, name: str) -> Schema:
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


def _bounded(schema: Schema, bounds: Schema) -> Schema:
    """Return `schema` within `bounds`. A field that may be null still may."""
    fields = dict(schema.get("properties", {}))
    for name, bound in bounds.get("properties", {}).items():
        nullable = "enum" in bound and "null" in fields[name]["type"]
        enum = {"enum": [*bound["enum"], None]} if nullable else {}
        fields[name] = fields[name] | bound | {"type": fields[name]["type"]} | enum
    return schema | bounds | ({"properties": fields} if fields else {})
