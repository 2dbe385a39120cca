"""An API server of a few objects, as far as `lookup` in a chart's templates asks one."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from tests.http_server import Answer, serving

_MISSING = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
_KINDS = {
    "v1": [("configmaps", "ConfigMap", True), ("secrets", "Secret", True),
           ("persistentvolumeclaims", "PersistentVolumeClaim", True)],
    "scheduling.k8s.io/v1": [("priorityclasses", "PriorityClass", False)],
    "node.k8s.io/v1": [("runtimeclasses", "RuntimeClass", False)],
    "storage.k8s.io/v1": [("storageclasses", "StorageClass", False)],
    "networking.k8s.io/v1": [("ingressclasses", "IngressClass", False)],
}  # fmt: skip


def api_server(objects: Mapping[str, Mapping[str, Any]]) -> AbstractContextManager[str]:
    """Serves `objects`, by path below the group such as `namespaces/llm/secrets/keys`. Yields its address."""

    def answer(method: str, url: str, body: bytes) -> Answer:
        path = url.partition("?")[0].strip("/")
        below = path.split("/", 2 if path.startswith("api/") else 3)[-1]
        found = _discovery(path) or objects.get(below)
        return (404, _MISSING) if found is None else (200, found)

    return serving(answer)


def _discovery(path: str) -> Mapping[str, Any] | None:
    if path == "version":
        return {"major": "1", "minor": "36", "gitVersion": "v1.36.0"}
    if path == "api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    groups = [version for version in _KINDS if "/" in version]
    if path == "apis":
        listed = [{"groupVersion": version, "version": "v1"} for version in groups]
        names = [version.partition("/")[0] for version in groups]
        return {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [
                {"name": name, "versions": [version], "preferredVersion": version}
                for name, version in zip(names, listed, strict=True)
            ],
        }
    version = path.removeprefix("apis/").removeprefix("api/")
    if version not in _KINDS:
        return None
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": version,
        "resources": [
            {"name": name, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": ["get"]}
            for name, kind, namespaced in _KINDS[version]
        ],
    }
