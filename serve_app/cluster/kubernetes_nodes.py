"""The GPU nodes of a Kubernetes cluster, and the pods that wait for one.

Needs the `kubernetes` extra, and a service account that may list nodes and the pods of its namespace.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """GPUs of the cluster, and pods of our namespace that wait for some. None is unknown, not zero."""

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
    """Why the first of them waits, as Kubernetes says it; or what could not be read."""


def gpu_nodes(nodes: _Objects | None, pods: _Objects | None) -> GpuNodes:
    """Sum up what the API server listed.

    Args:
        nodes: Node objects as the API has them (camelCase mappings), or None if they are unknown.
        pods: Pods of our namespace in phase Pending, or None.
    """
    found = GpuNodes()
    if nodes is not None:
        with_gpus = [node for node in nodes if _node_gpus(node) is not None]
        ready = [node for node in with_gpus if _takes_pods(node)]
        gpus = sum(_node_gpus(node) or 0 for node in ready)
        found = replace(found, nodes=len(with_gpus), ready_nodes=len(ready), allocatable_gpus=gpus)
    if pods is not None:
        waiting = [pod for pod in pods if _phase(pod) == "Pending" and _pod_gpus(pod) > 0]
        reasons = [(str(pod["metadata"].get("name")), *_why_pending(pod)) for pod in waiting]
        # A pod that finds no node says more than one whose image is being pulled.
        reasons.sort(key=lambda reason: not reason[1])
        found = replace(
            found,
            pending_pods=len(waiting),
            pending_gpus=sum(_pod_gpus(pod) for pod in waiting),
            message=next((f"pod {name}: {text}" for name, _, text in reasons if text), ""),
        )
    return found


class KubernetesNodes:
    """Asks the API server. For a background thread: a read takes up to twice `timeout_s`."""

    def __init__(self, api: Any = None, namespace: str = "", timeout_s: float = TIMEOUT_S) -> None:
        """Use `api`, a `CoreV1Api`, for pods of `namespace`; by default those of the cluster we run in."""
        self._api = api
        self._namespace = namespace
        self._timeout_s = timeout_s
        self._told: set[str] = set()
        self.enabled = api is not None or _in_a_cluster()
        """Whether there is anything to ask: false outside Kubernetes and without the extra."""

    def read(self) -> GpuNodes:
        """What there is now. Never raises for what the API server refuses or does not answer.

        What cannot be read is None, and the reason is logged and in `message` the first time it occurs.
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
        news = (no_nodes, no_pods)
        return replace(found, message="; ".join(text for text in (found.message, *news) if text))

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
        """The objects listed, or None and what is wrong if that has not been told before."""
        from kubernetes.client.exceptions import ApiException  # noqa: PLC0415
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        try:
            # As JSON: the client would make some thousand objects of a large cluster's nodes.
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
        if what in self._told:
            return None, ""
        self._told.add(what)
        logger.warning("%s; GPU capacity will be told without it", why)
        return None, why


def _in_a_cluster() -> bool:
    if not os.environ.get(env.KUBERNETES_SERVICE_HOST) or not (SERVICE_ACCOUNT / "token").is_file():
        return False
    if find_spec("kubernetes") is None:
        logger.info("in Kubernetes, without the `kubernetes` extra: pending replicas have Ray's reasons only")
        return False
    return True


def _node_gpus(node: Mapping[str, Any]) -> int | None:
    """Allocatable GPUs; 0 while the device plugin is down; None on a node without any."""
    status = node.get("status") or {}
    allocatable = (status.get("allocatable") or {}).get(GPU_RESOURCE)
    if allocatable is None and GPU_RESOURCE not in (status.get("capacity") or {}):
        return None
    return int(allocatable or 0)


def _takes_pods(node: Mapping[str, Any]) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or []
    ready = any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions)
    return ready and not (node.get("spec") or {}).get("unschedulable", False)


def _phase(pod: Mapping[str, Any]) -> str:
    return str((pod.get("status") or {}).get("phase"))


def _pod_gpus(pod: Mapping[str, Any]) -> int:
    """GPUs a pod asks for: the sum of its containers, or one init container's if that is more."""
    spec = pod.get("spec") or {}
    together = sum(_container_gpus(item) for item in spec.get("containers") or [])
    return max([together, *(_container_gpus(item) for item in spec.get("initContainers") or [])])


def _container_gpus(container: Mapping[str, Any]) -> int:
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return int(asked.get(GPU_RESOURCE, 0))


def _why_pending(pod: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether it finds no node, and why it does not run."""
    status = pod.get("status") or {}
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return True, str(condition.get("message") or condition.get("reason") or "not scheduled")
    statuses: Iterable[Mapping[str, Any]] = [
        *(status.get("initContainerStatuses") or []),
        *(status.get("containerStatuses") or []),
    ]
    for container in statuses:
        waiting = (container.get("state") or {}).get("waiting")
        if waiting:
            return False, ": ".join(
                str(waiting[key]) for key in ("reason", "message") if waiting.get(key) is not None
            )
    return False, ""
