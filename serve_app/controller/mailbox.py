"""The inbox and the outbox of the policy. `Sync` synchronizes both with Ray's key-value store."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple, Self

from serve_app.cluster.ray_resources import Node
from serve_app.controller.memory import KEPT_IDENTITIES, Memory
from serve_app.wire.ingress_reports import IngressReport
from serve_app.wire.served_models import ServedApplication

_KEPT = 5
"""Starts kept per kind of node: enough for a median that one slow download does not move."""


class StartUp(NamedTuple):
    """One start of a replica, with its seconds by phase."""

    replica: str
    phases_s: dict[str, float]
    warm_node: bool | None = None
    """Whether vLLM was imported on the node before; None if an earlier version measured the start."""
    identity: str = ""
    """See `serve_app.settings.identity`. Empty if an earlier version started the replica."""


@dataclass(frozen=True, slots=True)
class ColdStarts:
    """The newest starts of one deployment."""

    startups: tuple[StartUp, ...] = ()

    def add(self, phases: Mapping[str, Mapping[str, Any]]) -> Self:
        """Return the starts with newly finished ones from `phases`, the phase documents by replica."""
        known = {startup.replica for startup in self.startups}
        new = [
            StartUp(
                replica,
                {name: float(seconds) for name, seconds in document["durations_s"].items()},
                document.get("warm_node"),
                document.get("identity", ""),
            )
            for replica, document in sorted(phases.items(), key=lambda item: float(item[1]["since"]))
            if document["phase"] == "ready" and replica not in known
        ]
        if not new:
            return self
        found = (*self.startups, *new)
        newest = [*dict.fromkeys(each.identity for each in reversed(found))][:KEPT_IDENTITIES]
        kinds: dict[tuple[str, bool | None], list[str]] = {}
        for each in found:
            kinds.setdefault((each.identity, each.warm_node), []).append(each.replica)
        kept = {name for kind, names in kinds.items() if kind[0] in newest for name in names[-_KEPT:]}
        return type(self)(tuple(each for each in found if each.replica in kept))

    def of(self, identity: str) -> Self:
        """Return the starts of replicas of `identity`; without any, the starts of unknown identity."""
        if not identity:
            return self
        starts = [each for each in self.startups if each.identity == identity]
        return type(self)(tuple(starts or [each for each in self.startups if not each.identity]))

    def on(self, *, warm_node: bool) -> Self:
        """Return the starts on warm or on cold nodes; without any, the starts on unknown nodes."""
        starts = [each for each in self.startups if each.warm_node is warm_node]
        return type(self)(tuple(starts or [each for each in self.startups if each.warm_node is None]))

    def phases_s(self) -> dict[str, float]:
        """Return the median seconds of each phase, in the order of the phases."""
        starts = [startup.phases_s for startup in self.startups]
        names = dict.fromkeys(name for phases in starts for name in phases)
        return {name: median(phases.get(name, 0.0) for phases in starts) for name in names}

    @property
    def total_s(self) -> float | None:
        """Median seconds from the start of a replica's process to its readiness; None without a start."""
        return median(sum(each.phases_s.values()) for each in self.startups) if self.startups else None


@dataclass(frozen=True, slots=True)
class Deployment:
    """The documents about one engine deployment."""

    phases: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Phase documents by replica, of existing replicas and of replicas that could not start."""
    cold_starts: ColdStarts = field(default_factory=ColdStarts)
    no_room: str = ""
    """Why the cluster has no room for another replica; empty if it has room."""
    warm_node: bool = False
    """Whether a node whose zygote has imported vLLM has room for another replica."""


@dataclass(frozen=True, slots=True)
class Learned:
    """The memories and records of an earlier policy of the application."""

    memories: Mapping[str, Memory] = field(default_factory=dict)
    """By engine deployment."""
    records: Sequence[Mapping[str, Any]] = ()
    """Decision records, oldest first."""


@dataclass(frozen=True, slots=True)
class Inbox:
    """All documents that have been read. The inbox is replaced as a whole, so that it is consistent."""

    served: ServedApplication | None = None
    deployments: Mapping[str, Deployment] = field(default_factory=dict)
    """By engine deployment."""
    why_pods_wait: str = ""
    """Kubernetes' reason for a pending GPU pod; empty outside Kubernetes."""
    ingress_reports: Mapping[str, IngressReport] = field(default_factory=dict)
    """By ingress replica with queued requests, including replicas that Ray does not count as running."""
    nodes: tuple[Node, ...] | None = None
    """The nodes of the cluster; None unless `Outbox.look_at_nodes` is set."""
    learned: Learned | None = None
    """Set no later than `served`."""

    def identity(self, deployment: str) -> str:
        """Return the identity of an engine deployment's replicas; empty if unknown."""
        model = self.served.models.get(deployment) if self.served is not None else None
        return model.identity if model is not None else ""

    def cold_starts(self, deployment: str) -> ColdStarts:
        """Return the starts of replicas with the present identity of an engine deployment."""
        known = self.deployments.get(deployment, Deployment())
        return known.cold_starts.of(self.identity(deployment))


@dataclass(slots=True)
class Outbox:
    """All data to write. The policy replaces each part."""

    status: dict[str, Any] = field(default_factory=dict)
    decisions: list[dict[str, Any]] = field(default_factory=list)
    decisions_seq: int = 0
    memories: Mapping[str, Memory] | None = None
    """By engine deployment; None until the memories of an earlier policy have been read."""
    unsettled: Collection[str] = ()
    """The deployments with starting or stopping replicas."""
    look_at_nodes: bool = False
    """Whether the ingress would have more replicas if there is room."""


class Mailbox:
    """The policy's inbox and outbox."""

    def __init__(self, inbox: Inbox | None = None) -> None:
        self.inbox = inbox or Inbox()
        self.outbox = Outbox()

    def send(self) -> None:
        """Have the outbox written soon. This base class writes nothing."""
