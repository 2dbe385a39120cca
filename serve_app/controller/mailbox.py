"""What the policy reads and writes: an inbox and an outbox, which `Sync` keeps in step with Ray's store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serve_app.cluster.ingress_room import Node
from serve_app.cluster.kubernetes_nodes import GpuNodes
from serve_app.controller.cold_starts import ColdStarts
from serve_app.policy.state import PolicyState
from serve_app.wire.ingress_reports import IngressReport
from serve_app.wire.served_models import ServedApplication


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
    gpu_nodes: GpuNodes | None = None
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
    learned: Callable[[], dict[str, Any]] = dict
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
