"""Start-up phases in Ray's key-value store, where the ingress and the policy can read them.

A replica that is still loading cannot be called through Serve, so it writes down how far it is. One that is
killed leaves what it wrote behind; Ray knows which replicas there are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ray.experimental import internal_kv
from ray.serve._private.common import DeploymentID, ReplicaID
from ray.serve._private.constants import SERVE_NAMESPACE
from ray.util import list_named_actors

from serve_app.wire.documents import NAMESPACE, readable

FAILED = "failed"
"""The phase of a replica that could not start. Its document outlives it: it says why."""


@dataclass(frozen=True, slots=True)
class Phases:
    """The phase documents of one deployment, by replica."""

    existing: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Of the replicas that exist, and of those that could not start."""
    left_behind: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Of the others, which were killed."""


def _prefix(app: str, deployment: str) -> str:
    return f"phase/{app}/{deployment}/"


def publish_phase(app: str, deployment: str, replica: str, document: str) -> None:
    """Store a replica's phase document; see `Startup` for what is in it."""
    internal_kv._internal_kv_put(
        _prefix(app, deployment) + replica, document.encode(), overwrite=True, namespace=NAMESPACE
    )


def forget_phase(app: str, deployment: str, replica: str) -> None:
    """Remove what a replica that is no more had published."""
    internal_kv._internal_kv_del(_prefix(app, deployment) + replica, namespace=NAMESPACE)


def read_phases(app: str, deployments: Iterable[str]) -> dict[str, Phases]:
    """The phase documents of these deployments' replicas. Calls of the GCS: 1 ms, and 0.5 ms a document.

    A replica is a named actor, and Ray strikes a dead one off its list within 20 ms of the death of the
    process. That list is asked for after the documents have been read: a replica that wrote one was on it.
    """
    documents = {deployment: _documents(app, deployment) for deployment in deployments}
    if not any(documents.values()):
        return dict.fromkeys(documents, Phases())
    alive = {
        actor["name"]
        for actor in list_named_actors(all_namespaces=True)
        if actor["namespace"] == SERVE_NAMESPACE
    }
    return {
        deployment: _sort_out(found, alive, DeploymentID(deployment, app))
        for deployment, found in documents.items()
    }


def _sort_out(found: Mapping[str, Mapping[str, Any]], alive: set[str], deployment: DeploymentID) -> Phases:
    existing: dict[str, Mapping[str, Any]] = {}
    left_behind: dict[str, Mapping[str, Any]] = {}
    for replica, document in found.items():
        exists = ReplicaID(replica, deployment).to_full_id_str() in alive
        (existing if exists or document["phase"] == FAILED else left_behind)[replica] = document
    return Phases(existing, left_behind)


def _documents(app: str, deployment: str) -> dict[str, dict[str, Any]]:
    found = {}
    for key in internal_kv._internal_kv_list(_prefix(app, deployment), namespace=NAMESPACE):
        data = internal_kv._internal_kv_get(key, namespace=NAMESPACE)
        if data is not None:
            name = key.decode()
            document = readable(name, partial(_parse, data))
            if document is not None:
                found[name.rpartition("/")[2]] = document
    return found


def _parse(data: bytes) -> dict[str, Any]:
    """A phase document with all that readers of it go by. Raises if it is none."""
    document = json.loads(data)
    if not isinstance(document["phase"], str):
        raise TypeError(f"phase = {document['phase']!r}: must be a text")
    durations = {str(name): float(seconds) for name, seconds in document["durations_s"].items()}
    found = {**document, "since": float(document["since"]), "durations_s": durations}
    if document["phase"] == FAILED:
        found |= {"during": str(document["during"]), "reason": str(document["reason"])}
    if "until" in document:
        found["until"] = float(document["until"])
    return found
