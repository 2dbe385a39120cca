"""Start-up phases of replicas, in Ray's key-value store for the ingress and the policy.

A loading replica cannot be called through Serve, so it stores a document with its phase. A killed replica
leaves its document behind. Ray's list of actors shows which replicas exist.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ray.serve._private.common import DeploymentID, ReplicaID
from ray.serve._private.constants import SERVE_NAMESPACE
from ray.util import list_named_actors

from serve_app.wire.documents import erase, keys, read_all, write

DRAINING = "draining"
"""The phase of a replica that finishes its requests and then ends."""
CAUSES = ENGINE_HUNG, ENGINE_DIED, PROCESS_ENDED, NODE_LOST = (
    "engine_hung", "engine_died", "process_ended", "node_lost"
)  # fmt: skip
"""Why a replica was lost. `process_ended` also stands for a process that did not answer Ray."""
_FEW = 3
"""The documents of more deployments are read together with those of all others."""
FAILED = "failed"
"""The phase of a replica that could not start. Its document is kept, because it says why."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A replica that served, and that Ray has killed or found dead."""

    deployment: str
    replica: str
    cause: str
    """One of `CAUSES`."""
    reason: str

    @classmethod
    def of(cls, deployment: str, replica: str, document: Mapping[str, Any], nodes: Container[str]) -> Loss:
        """Return the loss of a replica that left `document` behind, in a cluster of these `nodes`."""
        node, cause, why = (document.get(name, "") for name in ("node", "cause", "trouble"))
        if cause not in CAUSES and node and node not in nodes:
            cause, why = NODE_LOST, f"its node {node[:8]} has left the cluster"
        elif cause not in CAUSES:
            cause, why = PROCESS_ENDED, "its process ended, or did not answer Ray"
        return cls(deployment, replica, cause, f"Replica {replica} was lost ({cause}): {why}.")


@dataclass(frozen=True, slots=True)
class Phases:
    """The phase documents of one deployment, by replica."""

    existing: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The documents of the replicas that exist, and of those that could not start."""
    left_behind: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The documents of killed replicas."""


def _prefix(app: str, deployment: str) -> str:
    return f"phase/{app}/{deployment}/"


def publish_phase(app: str, deployment: str, replica: str, document: str) -> None:
    """Store a replica's phase document (see `Startup`)."""
    write(_prefix(app, deployment) + replica, document.encode())


def forget_phase(app: str, deployment: str, replica: str) -> None:
    """Remove the phase document of a replica that is gone."""
    erase(_prefix(app, deployment) + replica)


def written_deployments(app: str) -> set[str]:
    """Return the deployments of `app` of which there are phase documents. Asks the GCS for 0.5 ms."""
    prefix = f"phase/{app}/"
    return {key.removeprefix(prefix).rpartition("/")[0] for key in keys(prefix)}


def read_phases(app: str, deployments: Iterable[str]) -> dict[str, Phases]:
    """Return the phase documents of these deployments, by three calls to the GCS, or two each for a few.

    A replica is a named actor, and Ray removes a dead one from its list within 20 ms. The list is read after
    the documents, so a living replica that wrote one is on it.
    """
    documents: dict[str, dict[str, dict[str, Any]]] = {deployment: {} for deployment in deployments}
    if len(documents) <= _FEW:
        documents = {deployment: read_all(_prefix(app, deployment), _parse) for deployment in documents}
    else:
        for key, document in read_all(f"phase/{app}/", _parse).items():
            deployment, _, replica = key.rpartition("/")
            if deployment in documents:
                documents[deployment][replica] = document
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


def _parse(data: bytes) -> dict[str, Any]:
    """Parse a phase document with all that its readers use. Raises if a part is missing."""
    document = json.loads(data)
    if not isinstance(document["phase"], str):
        raise TypeError(f"phase = {document['phase']!r}: must be a text")
    durations = {str(name): float(seconds) for name, seconds in document["durations_s"].items()}
    found = {
        **document,
        "since": float(document["since"]),
        "durations_s": durations,
        "warm_node": bool(document["warm_node"]),
        "identity": str(document["identity"]),
    }
    if document["phase"] == FAILED:
        found |= {"during": str(document["during"]), "reason": str(document["reason"])}
    found |= {name: str(document[name]) for name in ("node", "cause", "trouble") if name in document}
    found |= {name: float(document[name]) for name in ("until", "notice_s") if name in document}
    return found
