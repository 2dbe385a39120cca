"""`values.schema.json`: every value of the chart, closed, with its bounds.

A default in values.yaml decides the type of its value, where it can: a switch, text, or text that may not be
empty. Settings and knobs take their bounds from the application, Kubernetes types from its API, descriptions
from the comments in values.yaml. The rest is written down here: bounds, choices, and values that go together.
Patterns are in `files/values-rules.yaml` of the chart: Helm reports a pattern without the value.
"""

import json
from collections.abc import Mapping
from typing import Any

from serve_app.settings.keys_file import MOST_KEYS
from tools.chart.conditions import Schema, choice, when
from tools.chart.kubernetes_types import KubernetesTypes
from tools.chart.settings_schema import SettingsTypes, require
from tools.chart.values_comments import Comments

_CORE = "io.k8s.api.core.v1."
_NETWORKING = "io.k8s.api.networking.v1."
_LABEL = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"
_DAY_S = 86_400
PROOF_SHAPES = ("llama-3.1-8b", "llama-3.2-3b", "llama-3.2-1b", "tiny")
"""Models that the GPU proof can make up random weights for."""


def whole(least: int, most: int) -> Schema:
    """An integer within bounds, both included."""
    return {"type": "integer", "minimum": least, "maximum": most}


def above_zero(most: float) -> Schema:
    """A number above zero and at most `most`."""
    return {"type": "number", "exclusiveMinimum": 0, "maximum": most}


def closed(properties: Schema, required: tuple[str, ...] = ()) -> Schema:
    """A mapping with these keys and no others."""
    schema: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return schema | ({"required": list(required)} if required else {})


TEXT: Schema = {"type": "string", "minLength": 1}
TEXTS: Schema = {"type": "array", "items": TEXT}
PAIRS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
QUANTITY: Schema = {"type": ["string", "number"], "minLength": 1}
ON: Schema = {"const": True}
GIVEN: Schema = {"minLength": 1}
SOME: Schema = {"minItems": 1}

_PARENT = dict.fromkeys(("group", "kind", "name", "namespace", "sectionName"), TEXT)
_OBJECT_NAME = {"type": "object", "properties": {"name": GIVEN}, "required": ["name"]}
_OBJECT: Schema = {
    "type": ["object", "string"],  # a string is a template of objects
    "required": ["apiVersion", "kind", "metadata"],
    "properties": {"apiVersion": GIVEN, "kind": GIVEN, "metadata": _OBJECT_NAME},
}
_THRESHOLDS = "monitoring.prometheusRule.thresholds"
_BOUNDED: dict[str, Schema] = {
    "image.pullPolicy": choice("Always", "IfNotPresent", "Never"),
    "image.pullSecrets": TEXTS,
    "app.profile": choice("", "lowest-latency", "balanced", "lowest-cost"),
    "app.drain_timeout_s": {"type": "number", "minimum": 0, "maximum": _DAY_S},
    "initializingTimeoutSeconds": whole(0, _DAY_S),
    "terminationGracePeriodSeconds": whole(1, 7 * _DAY_S) | {"type": ["integer", "null"]},
    "preStopSeconds": whole(0, 300),
    "tmpSizeLimit": QUANTITY,
    "homeSizeLimit": QUANTITY,
    "extraObjects": {"type": "array", "items": _OBJECT},
    "head.terminationGracePeriodSeconds": whole(30, 3600),
    "ingressWorkers.minWorkers": whole(1, 1000),
    "autoscaler.upscalingMode": choice("Default", "Aggressive", "Conservative"),
    "upgradeStrategy.type": choice("NewCluster", "NewClusterWithIncrementalUpgrade", "None"),
    "upgradeStrategy.stepSizePercent": whole(1, 100),
    "upgradeStrategy.intervalSeconds": whole(1, _DAY_S),
    "upgradeStrategy.maxSurgePercent": whole(0, 100),
    "modelCache.type": choice("none", "pvc", "hostPath"),
    "modelCache.pvc.accessMode": choice("ReadWriteMany", "ReadWriteOnce"),
    "modelCache.pvc.size": QUANTITY,
    "modelCache.preDownload.nodes": whole(1, 1000),
    "modelCache.preDownload.backoffLimit": whole(0, 1000),
    "modelCache.preDownload.activeDeadlineSeconds": whole(60, 30 * _DAY_S),
    "service.type": choice("ClusterIP", "NodePort", "LoadBalancer"),
    "ingress.hosts": TEXTS,
    "gateway.parentRefs": {"type": "array", "items": closed(_PARENT | {"port": whole(1, 65535)}, ("name",))},
    "gateway.hostnames": TEXTS,
    "podDisruptionBudget.minAvailable": whole(1, 1000),
    "priorityClass.value": whole(-2_147_483_648, 1_000_000_000),
    "priorityClass.preemptionPolicy": choice("PreemptLowerPriority", "Never"),
    "monitoring.prometheusRule.selector": {"type": ["string", "null"]},
    f"{_THRESHOLDS}.ttft_target_s": above_zero(3600),
    f"{_THRESHOLDS}.itl_target_s": above_zero(3600),
    f"{_THRESHOLDS}.error_ratio": above_zero(1),
    f"{_THRESHOLDS}.rejected_ratio": above_zero(1),
    f"{_THRESHOLDS}.gpu_utilization_percent": above_zero(100),
    f"{_THRESHOLDS}.min_requests": whole(0, 1_000_000),
    f"{_THRESHOLDS}.min_errors": whole(0, 1_000_000),
    f"{_THRESHOLDS}.queued_requests": whole(1, 1_000_000),
    f"{_THRESHOLDS}.cold_start_factor": {"type": "number", "minimum": 1, "maximum": 100},
    f"{_THRESHOLDS}.cold_start_s": above_zero(_DAY_S),
    f"{_THRESHOLDS}.flaps_per_hour": whole(1, 1000),
    f"{_THRESHOLDS}.losses_per_hour": whole(1, 1000),
    "monitoring.dashboards.folder": {"type": "string"},
    "monitoring.dashboards.gpuHourPrice": {"type": "number", "minimum": 0},
    "tests.timeoutSeconds": whole(10, _DAY_S),
    "tests.gpuProof.randomWeights": choice("", *PROOF_SHAPES),
    "tests.gpuProof.minutes": {"type": "number", "minimum": 2, "maximum": 240},
    "tests.gpuProof.timeoutSeconds": whole(60, _DAY_S),
}
_BY_NAME: dict[str, Schema] = {
    **dict.fromkeys(
        (
            "labels",
            "annotations",
            "podLabels",
            "podAnnotations",
            "nodeSelector",
            "commonLabels",
            "commonAnnotations",
        ),
        PAIRS,
    ),
    "minWorkers": whole(0, 1000),
    "maxWorkers": whole(1, 1000),
    "idleTimeoutSeconds": whole(0, _DAY_S),
    "noticeSeconds": whole(0, _DAY_S),
}
_KUBERNETES = {
    "resources": f"{_CORE}ResourceRequirements",
    "affinity": f"{_CORE}Affinity",
    "podSecurityContext": f"{_CORE}PodSecurityContext",
    "securityContext": f"{_CORE}SecurityContext",
}
_KUBERNETES_LISTS = {
    "extraEnvFrom": f"{_CORE}EnvFromSource",
    "extraInitContainers": f"{_CORE}Container",
    "extraContainers": f"{_CORE}Container",
    "tolerations": f"{_CORE}Toleration",
    "env": f"{_CORE}EnvVar",
    "extraEnv": f"{_CORE}EnvVar",
    "extraVolumes": f"{_CORE}Volume",
    "extraVolumeMounts": f"{_CORE}VolumeMount",
    "topologySpreadConstraints": f"{_CORE}TopologySpreadConstraint",
    "tls": f"{_NETWORKING}IngressTLS",
    "clients": f"{_NETWORKING}NetworkPolicyPeer",
    "monitoring": f"{_NETWORKING}NetworkPolicyPeer",
    "operator": f"{_NETWORKING}NetworkPolicyPeer",
    "collector": f"{_NETWORKING}NetworkPolicyPeer",
    "to": f"{_NETWORKING}NetworkPolicyEgressRule",
}
_EGRESS_ON = {"properties": {"enabled": ON}, "required": ["enabled"]}
_ASKS_FOR_CPU = {
    "properties": {"requests": {"properties": {"cpu": GIVEN}, "required": ["cpu"]}},
    "required": ["requests"],
}
_CONDITIONS: dict[str, Schema] = {
    # KubeRay tells Ray the requested CPUs before there is a pod.
    "ingressWorkers": {"allOf": [{"properties": {"resources": _ASKS_FOR_CPU}, "required": ["resources"]}]},
    "upgradeStrategy": when(
        {"type": {"const": "NewClusterWithIncrementalUpgrade"}}, {"gatewayClassName": GIVEN}
    ),
    "gateway": when({"enabled": ON}, {"parentRefs": SOME}),
    "networkPolicy": {
        "allOf": [
            when({"enabled": ON}, {"operator": SOME}),
            when(
                {"enabled": ON, "egress": _EGRESS_ON},
                {"egress": {"properties": {"to": SOME}, "required": ["to"]}},
            ),
        ]
    },
    # Without a name the operator would give the rights of the head to every pod of the namespace.
    "serviceAccount": when({"create": {"const": False}}, {"name": GIVEN}),
    "gcsFaultTolerance": {
        "allOf": [
            when({"enabled": ON}, {"redisAddress": GIVEN}),
            when({"enabled": ON, "usernameKey": GIVEN}, {"existingSecret": GIVEN}),
        ]
    },
    "rayTls": when({"caSecret": GIVEN}, {"enabled": ON}),
    "apiKeys": when({"entries": SOME}, {"existingSecret": {"const": ""}}, required=False),
    "tests.gpuProof": when({"model": GIVEN}, {"randomWeights": {"const": ""}}, required=False),
}


class ValuesSchema:
    """Builds the schema; `defaults` are the values in values.yaml, `comments` the comments there."""

    def __init__(self, comments: Comments, defaults: Mapping[str, Any]) -> None:
        self._comments = comments
        self._defaults = defaults
        self._kubernetes = KubernetesTypes()
        settings = self._settings = SettingsTypes()
        self._by_path = dict(_BOUNDED)
        self._by_path |= {
            "app.http": settings.http(),
            "apiKeys.teams": settings.teams(),
            "apiKeys.entries": {"type": "array", "maxItems": MOST_KEYS, "items": settings.api_key()},
            "app.ingress": settings.ingress(),
            "app.request_log": settings.request_log(),
            "app.telemetry": settings.telemetry(),
            "app.ledger": settings.ledger(),
            "app.batch": settings.batch(),
            "models": {
                "type": "object",
                "propertyNames": {"pattern": _LABEL, "maxLength": 63},
                "additionalProperties": self._model(),
            },
        }

    def _model(self) -> Schema:
        """A model's settings, and the values of its own cache that differ from the shared cache."""
        model = self._settings.model()
        model["properties"]["modelCache"] = self._section(self._defaults["modelCache"], "modelCache")
        return model

    def build(self) -> Schema:
        """The whole document. Raises KeyError for a value whose type no default and no table gives."""
        schema = self._section(self._defaults, "")
        # Helm adds `global` to a part of another chart, and its `condition` may be our `enabled`.
        schema["properties"] |= {"global": {"type": "object"}, "enabled": {"type": "boolean"}}
        schema = json.loads(json.dumps(schema))  # parts that are used twice have descriptions of their own
        self._describe(schema)
        require(schema, self._defaults)
        definitions = self._kubernetes.definitions | self._settings.definitions
        return {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "title": "Values of the Tideserve chart",
            **schema,
            "definitions": dict(sorted(definitions.items())),
        }

    def _section(self, defaults: Mapping[str, Any], path: str) -> Schema:
        values = {name: self._value(name, default, path) for name, default in defaults.items()}
        return closed(values) | _CONDITIONS.get(path, {})

    def _value(self, name: str, default: Any, section: str) -> Schema:
        path = f"{section}.{name}".removeprefix(".")
        if path == "gpuProfiles":
            return self._profiles()
        if path in self._by_path:
            return self._by_path[path]
        if isinstance(default, list) or name == "topologySpreadConstraints":
            listed = self._kubernetes.list_of(_KUBERNETES_LISTS[name])
            return listed | ({"type": ["array", "null"]} if default is None else {})
        if name in _KUBERNETES:
            return self._kubernetes.of(_KUBERNETES[name])
        if isinstance(default, bool):
            return {"type": "boolean"}
        if isinstance(default, str):
            return TEXT if default else {"type": "string"}
        if isinstance(default, Mapping) and name not in _BY_NAME:
            return self._section(default, path)
        return _BY_NAME[name]

    def _profiles(self) -> Schema:
        size = {"memory": TEXT, "shm": TEXT, "cpu": {"type": ["string", "integer"], "minLength": 1}}
        of_gpus = {
            "accelerator_type": {"type": "string"},
            "gpuResource": TEXT,
            "resourceClaimTemplate": {"type": "string"},
            "gpusPerNode": whole(1, 64),
            "perGpu": closed(size, tuple(size)),
        }
        of_cpus = {"perPod": closed(size, tuple(size))}
        absent = {"type": "null"}
        of_device = {
            "if": {"properties": {"device": {"const": "gpu"}}},
            "then": {
                "required": [name for name in of_gpus if name != "resourceClaimTemplate"],
                "properties": dict.fromkeys(of_cpus, absent),
            },
            "else": {"required": [*of_cpus], "properties": dict.fromkeys(of_gpus, absent)},
        }
        [cpu] = [profile for profile in self._defaults["gpuProfiles"].values() if profile["device"] == "cpu"]
        both = {name: self._value(name, cpu[name], "") for name in cpu if name not in ("device", "perPod")}
        profile = of_gpus | of_cpus | both | {"device": choice("gpu", "cpu")}
        required = ("device", "minWorkers", "maxWorkers", "idleTimeoutSeconds")
        return {
            "type": "object",
            "propertyNames": {"pattern": _LABEL, "maxLength": 40},
            "additionalProperties": closed(profile, required) | of_device,
        }

    def _describe(self, schema: Schema) -> None:
        """Write every comment of values.yaml to its value; entries of `gpuProfiles` share theirs."""
        for path, description in self._comments.by_path.items():
            at = schema
            for part in path:
                at = (
                    at["properties"][part] if part in at.get("properties", {}) else at["additionalProperties"]
                )
            at["description"] = description
