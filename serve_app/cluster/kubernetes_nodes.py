"""The GPU nodes of a Kubernetes cluster, and the pods that wait for one.

Needs the `kubernetes` extra, and a service account that may list nodes and the pods of its namespace.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from serve_app import env

logger = logging.getLogger("ray.serve")

GPU_RESOURCE = "nvidia.com/gpu"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_S = 3.0

_Objects = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class GpuNodes:
    """GPUs of the cluster, and pods of our namespace that wait for some. None means unknown, not zero."""

    nodes: int | None = None
    """Nodes with a GPU, ready or not."""
    ready_nodes: int | None = None
    """Those that are ready and take new pods."""
    allocatable_gpus: int | None = None
    """GPUs of the ready nodes, in use or free."""
    pending_pods: int | None = None
    """Pods of our namespace that ask for a GPU and do not run yet."""
    pending_gpus: int | None = None
    message: str = ""
    """Why the first of these pods waits, as Kubernetes says, or what could not be read."""


def gpu_nodes(nodes: _Objects | None, pods: _Objects | None) -> GpuNodes:
    """Sum up what the API server listed; None is unknown.

    Args:
        nodes: Node objects as in the API (camelCase mappings).
        pods: Pods of our namespace in phase Pending.
    """
    found = GpuNodes()
    if nodes is not None:
        with_gpus = [node for node in nodes if _node_gpus(node) is not None]
        ready = [node for node in with_gpus if _takes_pods(node)]
        gpus = sum(_node_gpus(node) or 0 for node in ready)
        found = replace(found, nodes=len(with_gpus), ready_nodes=len(ready), allocatable_gpus=gpus)
    if pods is not None:
        waiting = [pod for pod in pods if _get(pod, "status", "phase") == "Pending" and _pod_gpus(pod) > 0]
        reasons = [(str(pod["metadata"].get("name")), *_why_pending(pod)) for pod in waiting]
        # A pod without a node explains more than one whose image is being pulled.
        reasons.sort(key=lambda reason: not reason[1])
        found = replace(
            found,
            pending_pods=len(waiting),
            pending_gpus=sum(_pod_gpus(pod) for pod in waiting),
            message=next((f"pod {name}: {text}" for name, _, text in reasons if text), ""),
        )
    return found


class KubernetesNodes:
    """Reads from the API server. For a background thread: a read takes up to twice `timeout_s`."""

    def __init__(self, api: Any = None, namespace: str = "", timeout_s: float = TIMEOUT_S) -> None:
        """Use `api`, a `CoreV1Api`, for pods of `namespace`; by default those of the cluster we run in."""
        self._api = api
        self._namespace = namespace
        self._timeout_s = timeout_s
        self._reported: set[str] = set()
        self.enabled = api is not None or _in_a_cluster()
        """Whether there is anything to read: false outside Kubernetes and without the extra."""

    def read(self) -> GpuNodes:
        """Return the state now. Never raises if the API server refuses or does not answer.

        What cannot be read is None; the reason is logged, and is in `message`, the first time it occurs.
        """
        if not self.enabled:
            return GpuNodes()
        if self._api is None:  # not earlier: importing the client takes 0.3 s
            self._connect()
        if self._api is None:
            return GpuNodes()
        # Version 0: whatever the API server has in memory, rather than a read of its database.
        nodes, no_nodes = self._list("nodes", self._api.list_node, resource_version="0")
        pods, no_pods = self._list(
            f"pods in namespace {self._namespace}",
            self._api.list_namespaced_pod,
            namespace=self._namespace,
            field_selector="status.phase=Pending",
        )
        found = gpu_nodes(nodes, pods)
        return replace(found, message="; ".join(filter(None, (found.message, no_nodes, no_pods))))

    def _connect(self) -> None:
        from kubernetes import client, config  # noqa: PLC0415

        configuration = client.Configuration()
        try:
            config.load_incluster_config(configuration)
            self._namespace = (SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
        except (config.ConfigException, OSError) as error:
            logger.warning("in Kubernetes, but its API cannot be used: %s", error)
            self.enabled = False
            return
        configuration.retries = False  # three of them would make 12 s of a timeout of 3 s
        self._api = client.CoreV1Api(client.ApiClient(configuration))

    def _list(self, what: str, ask: Callable[..., Any], **query: Any) -> tuple[_Objects | None, str]:
        """Return the objects listed, or None and the reason if it has not been reported before."""
        from kubernetes.client.exceptions import ApiException  # noqa: PLC0415
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        try:
            # As JSON: the client would make thousands of objects for the nodes of a large cluster.
            reply = ask(_preload_content=False, _request_timeout=self._timeout_s, **query)
            items: _Objects = json.loads(reply.data)["items"]
        except ApiException as error:
            why = f"cannot list {what}: {error.status} {error.reason}"
            if error.status == 403:
                why += " (the service account's role does not allow it)"
        except (HTTPError, OSError, ValueError, KeyError) as error:
            why = f"cannot list {what}: {type(error).__name__}: {error}"
        else:
            return items, ""
        if what in self._reported:
            return None, ""
        self._reported.add(what)
        logger.warning("%s; GPU capacity is reported without it", why)
        return None, why


def _in_a_cluster() -> bool:
    if not os.environ.get(env.KUBERNETES_SERVICE_HOST) or not (SERVICE_ACCOUNT / "token").is_file():
        return False
    if find_spec("kubernetes") is None:
        logger.info("in Kubernetes, without the `kubernetes` extra: pending replicas have Ray's reasons only")
        return False
    return True


def _get(found: Any, *path: str, default: Any = None) -> Any:
    """Return what is at `path` in an object of the API; `default` where a part is missing or null."""
    for name in path:
        found = (found or {}).get(name)
    return default if found is None else found


def _node_gpus(node: Mapping[str, Any]) -> int | None:
    """Return allocatable GPUs; 0 while the device plugin is down; None on a node without any."""
    allocatable = _get(node, "status", "allocatable", GPU_RESOURCE)
    if allocatable is None and _get(node, "status", "capacity", GPU_RESOURCE) is None:
        return None
    return int(allocatable or 0)


def _takes_pods(node: Mapping[str, Any]) -> bool:
    conditions = _get(node, "status", "conditions", default=[])
    ready = any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions)
    return ready and not _get(node, "spec", "unschedulable", default=False)


def _pod_gpus(pod: Mapping[str, Any]) -> int:
    """Return the GPUs a pod asks for: the sum of its containers, or one init container's if that is more."""

    def gpus(containers: str) -> list[int]:
        return [
            int(
                _get(item, "resources", "requests", GPU_RESOURCE)
                or _get(item, "resources", "limits", GPU_RESOURCE, default=0)
            )
            for item in _get(pod, "spec", containers, default=[])
        ]

    return max([sum(gpus("containers")), *gpus("initContainers")])


def _why_pending(pod: Mapping[str, Any]) -> tuple[bool, str]:
    """Return whether it finds no node, and why it does not run."""
    for condition in _get(pod, "status", "conditions", default=[]):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return True, str(condition.get("message") or condition.get("reason") or "not scheduled")
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in _get(pod, "status", kind, default=[]):
            waiting = _get(container, "state", "waiting")
            if waiting:
                said = (waiting.get("reason"), waiting.get("message"))
                return False, ": ".join(str(part) for part in said if part is not None)
    return False, ""
