"""An API server of a few objects, as far as `lookup` in a chart's templates asks one."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_KINDS = {
    "v1": [("configmaps", "ConfigMap", True), ("secrets", "Secret", True),
           ("persistentvolumeclaims", "PersistentVolumeClaim", True)],
    "scheduling.k8s.io/v1": [("priorityclasses", "PriorityClass", False)],
    "node.k8s.io/v1": [("runtimeclasses", "RuntimeClass", False)],
    "storage.k8s.io/v1": [("storageclasses", "StorageClass", False)],
    "networking.k8s.io/v1": [("ingressclasses", "IngressClass", False)],
}  # fmt: skip


@contextmanager
def api_server(objects: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Serves `objects`, by path below the group such as `namespaces/llm/secrets/keys`. Yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0].strip("/")
            found = _discovery(path)
            if found is None:
                below = path.split("/", 2 if path.startswith("api/") else 3)[-1]
                found = objects.get(below)
            missing = {
                "kind": "Status",
                "apiVersion": "v1",
                "status": "Failure",
                "reason": "NotFound",
                "code": 404,
            }
            body = json.dumps(missing if found is None else found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


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
