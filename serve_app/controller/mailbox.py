"""What the policy reads and writes: an inbox and an outbox, which `Sync` keeps in step with Ray's store."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Self

from serve_app.cluster.ray_resources import Node
from serve_app.policy.state import PolicyState
from serve_app.wire.ingress_reports import IngressReport
from serve_app.wire.served_models import ServedApplication

_KEPT = 5
"""Starts remembered: enough for a median that one slow download does not move."""


@dataclass(frozen=True, slots=True)
class ColdStarts:
    """The newest starts of one deployment: for each, the replica and its seconds by phase."""

    startups: tuple[tuple[str, Mapping[str, float]], ...] = ()

    def add(self, phases: Mapping[str, Mapping[str, Any]]) -> Self:
        """Return them with the starts that are finished by the phase documents, given by replica."""
        known = {replica for replica, _ in self.startups}
        new = [
            (replica, {name: float(seconds) for name, seconds in document["durations_s"].items()})
            for replica, document in sorted(phases.items(), key=lambda item: float(item[1]["since"]))
            if document["phase"] == "ready" and replica not in known
        ]
        return type(self)((*self.startups, *new)[-_KEPT:]) if new else self

    def phases_s(self) -> dict[str, float]:
        """Return the typical seconds of each phase, in the order replicas go through them."""
        names = list(dict.fromkeys(name for _, phases in self.startups for name in phases))
        return {name: median(phases.get(name, 0.0) for _, phases in self.startups) for name in names}

    @property
    def total_s(self) -> float | None:
        """Typical seconds from the start of a replica's process to its readiness; None before the first."""
        return median(sum(phases.values()) for _, phases in self.startups) if self.startups else None


@dataclass(frozen=True, slots=True)
class Deployment:
    """What the documents say about one engine deployment."""

    phases: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Phase documents by replica: of the replicas that exist, and of those that could not start."""
    cold_starts: ColdStarts = field(default_factory=ColdStarts)
    no_room: str = ""
    """Why the cluster has no room for another replica, as far as it says; empty if it has."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What an earlier policy of the application has left."""

    states: Mapping[str, PolicyState] = field(default_factory=dict)
    """By engine deployment."""
    records: Sequence[Mapping[str, Any]] = ()
    """Decision records, oldest first."""


@dataclass(frozen=True, slots=True)
class Inbox:
    """What has been read. It is replaced as a whole, so that a reader sees one moment."""

    served: ServedApplication | None = None
    deployments: Mapping[str, Deployment] = field(default_factory=dict)
    """By engine deployment."""
    why_pods_wait: str = ""
    """Why a GPU pod waits, as Kubernetes says; empty outside of Kubernetes."""
    ingress_reports: Mapping[str, IngressReport] = field(default_factory=dict)
    """By ingress replica that holds requests, whether Ray counts it as running or not."""
    nodes: tuple[Node, ...] | None = None
    """The nodes of the cluster, while `Outbox.look_at_nodes` asks for them."""
    learned: Learned | None = None
    """Set no later than `served`."""


@dataclass(slots=True)
class Outbox:
    """What is to be written. The policy replaces each part."""

    status: dict[str, Any] = field(default_factory=dict)
    decisions: list[dict[str, Any]] = field(default_factory=list)
    decisions_seq: int = 0
    states: Mapping[str, PolicyState] | None = None
    """What has been learned, by engine deployment; None until what an earlier policy learned is known."""
    unsettled: Collection[str] = ()
    """The deployments whose replicas are starting or stopping."""
    look_at_nodes: bool = False
    """Whether the ingress would have more replicas if there is room."""


class Mailbox:
    """The policy's inbox and outbox."""

    def __init__(self, inbox: Inbox | None = None) -> None:
        self.inbox = inbox or Inbox()
        self.outbox = Outbox()

    def send(self) -> None:
        """Have the outbox written soon; here nobody reads it."""
