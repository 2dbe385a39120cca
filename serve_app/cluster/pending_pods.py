"""The pending pods of our namespace: Kubernetes' reasons, and the Ray nodes that they will be.

Needs the `kubernetes` extra, and a service account that may list the pods of its namespace.
"""

import json
import logging
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from serve_app import env
from serve_app.wire.resources import ComingNode

logger = logging.getLogger("ray.serve")

GPU_RESOURCE = "nvidia.com/gpu"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_S = 3.0


def why_pods_wait(pods: Sequence[Mapping[str, Any]]) -> str:
    """Return the name of the first pod that asks for a GPU, and why it does not run; "" without one.

    `pods` are objects of the API in phase Pending. A pod without a node comes before a pod that pulls its
    image.
    """
    reasons = [(*_why_pending(pod), pod["metadata"].get("name")) for pod in pods if _asks_for_gpu(pod)]
    reasons.sort(key=lambda reason: not reason[0])
    return next((f"pod {name}: {text}" for _, text, name in reasons if text), "")


def coming_nodes(pods: Sequence[Mapping[str, Any]]) -> tuple[ComingNode, ...]:
    """Return the Ray nodes that KubeRay's pending worker pods will be; `since` is the pod's Unix time.

    Their resources are the arguments of `ray start`, which KubeRay writes into each pod.
    """
    return tuple(
        ComingNode(meta["name"], total, datetime.fromisoformat(meta["creationTimestamp"]).timestamp())
        for pod in pods
        if _get(meta := pod["metadata"], "labels", "ray.io/node-type") == "worker"
        and "deletionTimestamp" not in meta
        and (total := _ray_resources(pod))
    )


_RAY_START = re.compile(r"ray start[^;&|]*")
_RAY_NAMES = {"--num-cpus": "CPU", "--num-gpus": "GPU", "--memory": "memory"}


def _ray_resources(pod: Mapping[str, Any]) -> dict[str, float]:
    """Return the resources that the pod's `ray start` names; empty without such a command."""
    for container in _get(pod, "spec", "containers", default=[]):
        variables = [_get(variable, "value", default="") for variable in _get(container, "env", default=[])]
        found = _RAY_START.search("\n".join([*variables, *_get(container, "args", default=[])]))
        if found is not None:
            options = [word.partition("=") for word in shlex.split(found[0])]
            amounts = {_RAY_NAMES[key]: float(value) for key, _, value in options if key in _RAY_NAMES}
            custom = next((value for key, _, value in options if key == "--resources"), "{}")
            return {"GPU": 0.0, **amounts, **json.loads(custom)}
    return {}


class PendingPods:
    """Reads from the API server. For a background thread: a read takes up to `timeout_s`."""

    def __init__(self, api: Any = None, namespace: str = "", timeout_s: float = TIMEOUT_S) -> None:
        """Use `api`, a `CoreV1Api`, for pods of `namespace`; by default those of the cluster we run in."""
        self._api = api
        self._namespace = namespace
        self._timeout_s = timeout_s
        self._failed = False
        self.coming: tuple[ComingNode, ...] = ()
        """The nodes that come, as last read."""
        self.enabled = api is not None or _in_a_cluster()
        """Whether there is anything to read: false outside Kubernetes and without the extra."""

    def read(self) -> str:
        """Return why the first GPU pod waits; "" if none does.

        If the API server refuses or does not answer, the first such error is logged and returned.
        """
        if self._api is None and self.enabled:  # not earlier: importing the client takes 0.3 s
            self._connect()
        if not self.enabled:
            return ""
        from kubernetes.client.exceptions import ApiException  # noqa: PLC0415
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        self.coming = ()
        why = f"cannot list pods in namespace {self._namespace}: "
        try:
            reply = self._api.list_namespaced_pod(
                self._namespace,
                field_selector="status.phase=Pending",
                _preload_content=False,  # as JSON, which costs less than the client's objects
                _request_timeout=self._timeout_s,
            )
            pods = json.loads(reply.data)["items"]
            self.coming = coming_nodes(pods)
            return why_pods_wait(pods)
        except ApiException as error:
            why += f"{error.status} {error.reason}"
            if error.status == 403:
                why += " (the service account's role does not allow it)"
        except (HTTPError, OSError, ValueError, KeyError) as error:
            why += f"{type(error).__name__}: {error}"
        if self._failed:
            return ""
        self._failed = True
        logger.warning("%s; pending replicas have Ray's reasons only", why)
        return why

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
        configuration.retries = False  # three retries would turn a timeout of 3 s into 12 s
        self._api = client.CoreV1Api(client.ApiClient(configuration))


def _in_a_cluster() -> bool:
    if not os.environ.get(env.KUBERNETES_SERVICE_HOST) or not (SERVICE_ACCOUNT / "token").is_file():
        return False
    if find_spec("kubernetes") is None:
        logger.info("in Kubernetes, without the `kubernetes` extra: pending replicas have Ray's reasons only")
        return False
    return True


def _asks_for_gpu(pod: Mapping[str, Any]) -> bool:
    return any(
        int(_get(container, "resources", kind, GPU_RESOURCE, default=0)) > 0
        for containers in ("containers", "initContainers")
        for container in _get(pod, "spec", containers, default=[])
        for kind in ("requests", "limits")
    )


def _why_pending(pod: Mapping[str, Any]) -> tuple[bool, str]:
    """Return whether it finds no node, and why it does not run."""
    for condition in _get(pod, "status", "conditions", default=[]):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return True, str(condition.get("message") or condition.get("reason") or "not scheduled")
    for kind in ("initContainerStatuses", "containerStatuses"):
        for container in _get(pod, "status", kind, default=[]):
            if waiting := _get(container, "state", "waiting"):
                return False, ": ".join(filter(None, (waiting.get("reason"), waiting.get("message"))))
    return False, ""


def _get(found: Any, *path: str, default: Any = None) -> Any:
    """Return what is at `path` in an object of the API; `default` where a part is missing or null."""
    for name in path:
        found = (found or {}).get(name)
    return default if found is None else found
