"""Start-up phases in Ray's key-value store, where the ingress can read them.

A replica that is still loading cannot be called through Serve, so it writes down how far it is.
"""

from __future__ import annotations

import json
from typing import Any

from ray.experimental import internal_kv

_NAMESPACE = "tideserve"


def _prefix(app: str, deployment: str) -> str:
    return f"phase/{app}/{deployment}/"


def publish_phase(app: str, deployment: str, replica: str, document: str) -> None:
    """Store a replica's phase document; see `Startup` for what is in it."""
    internal_kv._internal_kv_put(
        _prefix(app, deployment) + replica, document.encode(), overwrite=True, namespace=_NAMESPACE
    )


def forget_phase(app: str, deployment: str, replica: str) -> None:
    """Remove what a replica that is no more had published."""
    internal_kv._internal_kv_del(_prefix(app, deployment) + replica, namespace=_NAMESPACE)


def read_phases(app: str, deployment: str) -> dict[str, dict[str, Any]]:
    """The phase documents of a deployment's replicas, by replica."""
    phases = {}
    for key in internal_kv._internal_kv_list(_prefix(app, deployment), namespace=_NAMESPACE):
        document = internal_kv._internal_kv_get(key, namespace=_NAMESPACE)
        if document is not None:
            phases[key.decode().rpartition("/")[2]] = json.loads(document)
    return phases
