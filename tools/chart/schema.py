"""`values.schema.json`: every value of the chart, closed, with its bounds.

Settings and knobs take their bounds from the application, Kubernetes's types from its API, descriptions
from the comments in values.yaml; what is left is written down here. Patterns of single values are in
`files/values-rules.yaml` of the chart: Helm tells of a pattern without the value that breaks it.
"""

import json
from collections.abc import Mapping
from typing import Any

from tools.chart.kubernetes_types import KubernetesTypes
from tools.chart.settings_schema import SettingsTypes, require
from tools.chart.values_comments import Comments

Schema = dict[str, Any]

_CORE = "io.k8s.api.core.v1."
_NETWORKING = "io.k8s.api.networking.v1."
_LABEL = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"
_DAY_S = 86_400
PROOF_SHAPES = ("llama-3.1-8b", "llama-3.2-3b", "llama-3.2-1b", "tiny")
"""What random weights the GPU proof can make up."""


def text(*, empty: bool = True) -> Schema:
    """A string."""
    return {"type": "string"} if empty else {"type": "string", "minLength": 1}


def one_of(*values: str) -> Schema:
    """A string out of these."""
    return {"type": "string", "enum": list(values)}


def whole(least: int, most: int) -> Schema:
    """An integer within bounds, both included."""
    return {"type": "integer", "minimum": least, "maximum": most}


def quantity() -> Schema:
    """An amount as Kubernetes writes it."""
    return {"type": ["string", "number"], "minLength": 1}


def flag() -> Schema:
    """True or false."""
    return {"type": "boolean"}


def texts() -> Schema:
    """A list of strings."""
    return {"type": "array", "items": text(empty=False)}


def pairs() -> Schema:
    """Labels or annotations."""
    return {"type": "object", "additionalProperties": {"type": "string"}}


def closed(properties: Schema, required: tuple[str, ...] = ()) -> Schema:
    """A mapping with these keys and no others."""
    schema: Schema = {"type": "object", "additionalProperties": False, "properties": properties}
    return {**schema, "required": list(required)} if required else schema


class ValuesSchema:
    """Builds the schema; `defaults` are the values in values.yaml, `comments` the comments there."""

    def __init__(self, comments: Comments, defaults: Mapping[str, Any]) -> None:
        self._comments = comments
        self._defaults = defaults
        self._kubernetes = KubernetesTypes()
        self._settings = SettingsTypes()

    def build(self) -> Schema:
        """The whole document."""
        properties = (
            self._general() | self._application() | self._workers() | self._parts() | self._monitoring()
        )
        # Helm adds `global` wherever the chart is a part of another.
        schema = closed(properties | {"global": {"type": "object"}})
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

    def _general(self) -> Schema:
        core = self._core
        return {
            "nameOverride": text(),
            "fullnameOverride": text(),
            "image": closed(
                {
                    "repository": text(),
                    "tag": text(),
                    "digest": text(),
                    "pullPolicy": one_of("Always", "IfNotPresent", "Never"),
                    "pullSecrets": texts(),
                }
            ),
            "rayVersion": text(empty=False),
            "fastDataPath": flag(),
            "initializingTimeoutSeconds": whole(0, _DAY_S),
            "terminationGracePeriodSeconds": whole(1, 7 * _DAY_S) | {"type": ["integer", "null"]},
            "preStopSeconds": whole(0, 300),
            "podSecurityContext": core("PodSecurityContext"),
            "securityContext": core("SecurityContext"),
            "tmpSizeLimit": quantity(),
            "homeSizeLimit": quantity(),
            "extraVolumes": self._kubernetes.list_of(f"{_CORE}Volume"),
            "extraVolumeMounts": self._kubernetes.list_of(f"{_CORE}VolumeMount"),
            "extraEnv": self._env(),
            # Anything at all: they are objects of any kind, or templates of such.
            "extraObjects": {"type": "array", "items": {"type": ["object", "string"]}},
        }

    def _application(self) -> Schema:
        settings = self._settings
        models = {
            "type": "object",
            "propertyNames": {"pattern": _LABEL, "maxLength": 63},
            "additionalProperties": settings.model(),
        }
        app = {
            "profile": one_of("", "lowest-latency", "balanced", "lowest-cost"),
            "drain_timeout_s": {"type": "number", "minimum": 0, "maximum": _DAY_S},
            "http": settings.http(),
            "ingress": settings.ingress(),
            "request_log": settings.request_log(),
            "zygote": flag(),
        }
        return {"app": closed(app), "models": models}

    def _workers(self) -> Schema:
        scheduling = {
            "nodeSelector": pairs(),
            "tolerations": self._kubernetes.list_of(f"{_CORE}Toleration"),
            "affinity": self._core("Affinity"),
        }
        bounds = {
            "minWorkers": whole(0, 1000),
            "maxWorkers": whole(1, 1000),
            "idleTimeoutSeconds": whole(0, _DAY_S),
        }
        pods = {"podAnnotations": pairs(), "podLabels": pairs(), "priorityClassName": text()}
        profile = bounds | scheduling | {"runtimeClassName": text(), "env": self._env()}
        size = {"memory": text(empty=False)}
        size |= {"shm": size["memory"], "cpu": {"type": ["string", "integer"], "minLength": 1}}
        of_gpus = {
            "device": one_of("gpu"),
            "accelerator_type": text(empty=False),
            "gpuResource": text(empty=False),
            "gpusPerNode": whole(1, 64),
            "perGpu": closed(size, ("cpu", "memory", "shm")),
        }
        of_cpus = {"device": one_of("cpu"), "perPod": closed(size, ("cpu", "memory", "shm"))}
        # What belongs to the other kind of device is refused by the templates, in a sentence: Helm tells of
        # `if` and `else` as well where a schema has them.
        profiles = {
            "type": "object",
            "propertyNames": {"pattern": _LABEL, "maxLength": 40},
            "additionalProperties": closed(
                of_gpus | of_cpus | profile | {"device": one_of("gpu", "cpu")}, ("device", *bounds)
            ),
        }
        head = scheduling | pods | {"resources": self._core("ResourceRequirements"), "env": self._env()}
        spread = self._kubernetes.list_of(f"{_CORE}TopologySpreadConstraint")
        ingress = head | bounds | {"minWorkers": whole(1, 1000)}
        ingress["topologySpreadConstraints"] = spread | {"type": ["array", "null"]}
        autoscaler = {
            "upscalingMode": one_of("Default", "Aggressive", "Conservative"),
            "idleTimeoutSeconds": whole(0, _DAY_S),
            "resources": self._core("ResourceRequirements"),
        }
        upgrade = {
            "type": one_of("NewCluster", "NewClusterWithIncrementalUpgrade", "None"),
            "stepSizePercent": whole(1, 100),
            "intervalSeconds": whole(1, _DAY_S),
            "maxSurgePercent": whole(0, 100),
            "gatewayClassName": text(),
        }
        return {
            "gpuProfiles": profiles,
            "head": closed(head | {"terminationGracePeriodSeconds": whole(30, 3600)}),
            "ingressWorkers": closed(ingress),
            "engineWorkers": closed(pods | {"topologySpreadConstraints": spread}),
            "autoscaler": closed(autoscaler),
            "upgradeStrategy": closed(upgrade),
        }

    def _parts(self) -> Schema:
        listed = self._kubernetes.list_of
        peers = listed(f"{_NETWORKING}NetworkPolicyPeer")
        secret = {"existingSecret": text(), "key": text(empty=False)}
        job = {
            "enabled": flag(),
            "nodes": whole(1, 1000),
            "backoffLimit": whole(0, 1000),
            "activeDeadlineSeconds": whole(60, 30 * _DAY_S),
            "resources": self._core("ResourceRequirements"),
            "nodeSelector": pairs(),
            "tolerations": listed(f"{_CORE}Toleration"),
        }
        claim = {
            "existingClaim": text(),
            "accessMode": one_of("ReadWriteMany", "ReadWriteOnce"),
            "storageClassName": text(),
            "size": quantity(),
            "keep": flag(),
        }
        cache = {
            "type": one_of("none", "pvc", "hostPath"),
            "mountPath": text(empty=False),
            "compiled": flag(),
            "pvc": closed(claim),
            "hostPath": closed({"path": text(empty=False)}),
            "preDownload": closed(job),
        }
        route = {"enabled": flag(), "annotations": pairs()}
        parent = {name: text(empty=False) for name in ("group", "kind", "name", "namespace", "sectionName")}
        parents = {"type": "array", "items": closed(parent | {"port": whole(1, 65535)}, ("name",))}
        policy = {
            "enabled": flag(),
            "clients": peers,
            "monitoring": peers,
            "operator": peers,
            "egress": closed({"enabled": flag(), "to": listed(f"{_NETWORKING}NetworkPolicyEgressRule")}),
        }
        redis = {
            "enabled": flag(),
            "redisAddress": text(),
            "existingSecret": text(),
            "passwordKey": text(empty=False),
            "usernameKey": text(),
            "externalStorageNamespace": text(),
        }
        proof = {
            "enabled": flag(),
            "image": closed({"repository": text(), "tag": text(), "digest": text()}),
            "gpuProfile": text(),
            "model": text(),
            "randomWeights": one_of("", *PROOF_SHAPES),
            "minutes": {"type": "number", "minimum": 2, "maximum": 240},
            "timeoutSeconds": whole(60, _DAY_S),
        }
        return {
            "apiKeys": closed(secret),
            "rayAuth": closed({"existingSecret": text()}),
            "huggingFaceToken": closed(secret),
            "modelCache": closed(cache),
            "service": closed(
                {"type": one_of("ClusterIP", "NodePort", "LoadBalancer"), "annotations": pairs()}
            ),
            "ingress": closed(
                route | {"className": text(), "hosts": texts(), "tls": listed(f"{_NETWORKING}IngressTLS")}
            ),
            "gateway": closed(route | {"parentRefs": parents, "hostnames": texts()}),
            "networkPolicy": closed(policy),
            "podDisruptionBudget": closed({"enabled": flag(), "maxUnavailable": whole(0, 1000)}),
            "serviceAccount": closed({"create": flag(), "name": text(), "annotations": pairs()}),
            "rbac": closed({"nodeAwareness": flag()}),
            "priorityClass": closed(
                {
                    "create": flag(),
                    "value": whole(-2_147_483_648, 1_000_000_000),
                    "preemptionPolicy": one_of("PreemptLowerPriority", "Never"),
                }
            ),
            "gcsFaultTolerance": closed(redis),
            "tests": closed(
                {"timeoutSeconds": whole(10, _DAY_S), "model": text(), "gpuProof": closed(proof)}
            ),
        }

    def _monitoring(self) -> Schema:
        seconds: Schema = {"type": "number", "exclusiveMinimum": 0, "maximum": 3600}
        ratio: Schema = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
        thresholds = {
            "ttft_target_s": seconds,
            "itl_target_s": seconds,
            "error_ratio": ratio,
            "rejected_ratio": ratio,
            "min_requests": whole(0, 1_000_000),
            "min_errors": whole(0, 1_000_000),
            "queued_requests": whole(1, 1_000_000),
            "cold_start_factor": {"type": "number", "minimum": 1, "maximum": 100},
            "cold_start_s": {"type": "number", "exclusiveMinimum": 0, "maximum": _DAY_S},
            "flaps_per_hour": whole(1, 1000),
            "gpu_utilization_percent": {"type": "number", "exclusiveMinimum": 0, "maximum": 100},
        }
        monitor = {"enabled": flag(), "interval": text(empty=False)}
        rule = {"enabled": flag(), "runbookBase": text(), "selector": {"type": ["string", "null"]}}
        rule["thresholds"] = closed(thresholds)
        boards = {"enabled": flag(), "folder": text(), "gpuHourPrice": {"type": "number", "minimum": 0}}
        labels = {"labels": pairs()}
        monitoring = {
            "podMonitor": closed(monitor | labels),
            "prometheusRule": closed(rule | labels),
            "dashboards": closed(boards | labels),
        }
        return {"monitoring": closed(monitoring)}

    def _env(self) -> Schema:
        return self._kubernetes.list_of(f"{_CORE}EnvVar")

    def _core(self, kind: str) -> Schema:
        return self._kubernetes.of(f"{_CORE}{kind}")

    def _describe(self, schema: Schema) -> None:
        """Write every comment of values.yaml to its value; entries of `gpuProfiles` share theirs."""
        for path, description in self._comments.by_path.items():
            at = schema
            for part in path:
                at = (
                    at["properties"][part] if part in at.get("properties", {}) else at["additionalProperties"]
                )
            at["description"] = description
