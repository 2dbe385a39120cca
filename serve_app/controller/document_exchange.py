"""The policy's inbox and outbox, and the thread that exchanges them with documents in Ray's key-value store.

The policy runs in the event loop of Ray Serve's controller, ten times a second. A call to the GCS there would
block every deployment of the cluster. So the policy never waits: a thread reads and writes.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic import TypeAdapter

from serve_app.cluster.pending_pods import PendingPods
from serve_app.cluster.ray_resources import read_nodes, shortage
from serve_app.controller.cold_starts import ColdStarts, StartUp
from serve_app.controller.decision_spans import DecisionSpans
from serve_app.policy.state import Memory, restore
from serve_app.wire.batches import BatchBacklog, parse_backlogs
from serve_app.wire.documents import (
    BATCHES,
    DECISIONS,
    KNOBS,
    LEARNED,
    STATUS,
    WARMED,
    parse_records,
    parse_warmed,
    put_document,
    read_document,
)
from serve_app.wire.ingress_reports import IngressReport, forget_report, read_reports
from serve_app.wire.own_clock import OwnClock, SteadyTime
from serve_app.wire.phases import FAILED, Loss, forget_phase, read_phases, written_deployments
from serve_app.wire.resources import ComingNode, Node, lacking
from serve_app.wire.served_models import ServedApplication, ServedModel, read_served
from serve_app.wire.version_documents import (
    Counts,
    forget_counts,
    forget_share,
    put_share,
    read_counts,
    read_shares,
)
from serve_app.wire.versions import Share

logger = logging.getLogger("ray.serve")

_POLL_S = 0.5
_QUIET_POLLS = 4
"""While nothing happens, this many times as long passes between two turns."""
_HURRY_S = 2.0
_IDLE_PHASES_S = 5.0
_RESOURCES_S = 2.0
_IDLE_RESOURCES_S = 5.0
_STATUS_S = 10.0
_LEARNED_S = 10.0
_KUBERNETES_S = 15.0
_NODES_S = 1.0
_REPORT_FORGOTTEN_S = 60.0
"""An ingress replica with queued requests reports twice a second. After this silence it was killed."""
_FORGOTTEN_S = 3600.0
"""How long the reason of a failed start is kept."""

_COLD_STARTS = TypeAdapter(dict[str, tuple[StartUp, ...]])


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
    warmed: bool = False
    """Whether such a node is large enough for a replica. Its room may be in use."""


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
    coming: tuple[ComingNode, ...] = ()
    """The nodes that KubeRay's autoscaler has asked for, while some replica is pending."""
    ingress_reports: Mapping[str, IngressReport] = field(default_factory=dict)
    """By ingress replica with queued requests, including replicas that Ray does not count as running."""
    nodes: tuple[Node, ...] | None = None
    """The nodes of the cluster; None unless `Outbox.look_at_nodes` is set."""
    batches: Mapping[str, BatchBacklog] = field(default_factory=dict)
    """What is left of the open batches, by model."""
    shares: Mapping[str, Share] = field(default_factory=dict)
    """The stored shares of versions, by version."""
    counts: Mapping[str, Counts] = field(default_factory=dict)
    """The counts of versions that are compared, by ingress replica."""
    learned: Learned | None = None
    """Set no later than `served`."""

    def identity(self, deployment: str) -> str:
        """Return the identity of an engine deployment's replicas; empty if unknown."""
        model = self._served(deployment)
        return model.identity if model is not None else ""

    def model(self, deployment: str) -> str:
        """Return the name of an engine deployment's model; empty if unknown."""
        model = self._served(deployment)
        return model.name if model is not None else ""

    def _served(self, deployment: str) -> ServedModel | None:
        if self.served is None:
            return None
        return self.served.models.get(deployment) or self.served.engines().get(deployment)

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
    """Whether the ingress wants more replicas, or an engine replica has no place yet."""


class Mailbox:
    """The policy's inbox and outbox."""

    def __init__(self, inbox: Inbox | None = None) -> None:
        self.inbox = inbox or Inbox()
        self.outbox = Outbox()
        self.losses: deque[Loss] = deque()
        """Lost replicas that the policy has not counted yet, oldest first."""
        self.shares: deque[tuple[str, Share]] = deque()
        """Shares of versions to store, by version."""

    def send(self) -> None:
        """Have the outbox written soon. This base class writes nothing."""

    def hurry(self) -> None:
        """Have documents read soon, and often for the next seconds. This base class reads nothing."""


class DocumentExchange(Mailbox):
    """Reads and writes the documents of one application until it is stopped.

    Args:
        app: The Serve application.
        nodes: Reads the nodes of the cluster.
        pending_pods: Reads from Kubernetes why a GPU pod is pending.
        poll_s: The longest time between two turns after `hurry`, in seconds. Later it is four times as long.
    """

    def __init__(
        self,
        app: str,
        nodes: Callable[[], tuple[Node, ...]] = read_nodes,
        pending_pods: PendingPods | None = None,
        poll_s: float = _POLL_S,
    ) -> None:
        super().__init__()
        self._app = app
        self._nodes = nodes
        self._poll_s = poll_s
        self._hurries_until = 0.0
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._written_status: dict[str, Any] = {}
        self._written_seq = 0
        self._done_at: dict[str, float] = {}
        """When each kind of document was last read or written."""
        self._pending_pods = PendingPods() if pending_pods is None else pending_pods
        self._own_clock = OwnClock()
        self._failures: set[str] = set()
        self._decision_spans = DecisionSpans()
        self._thread = threading.Thread(target=self._run, name=f"autoscaling-{app}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current turn, without waiting for it."""
        self._stop.set()
        self._wake.set()

    def join(self, timeout_s: float) -> bool:
        """Return whether the thread has ended within `timeout_s` seconds, or never began."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def send(self) -> None:
        self._wake.set()

    def hurry(self) -> None:
        now = time.monotonic()
        if now >= self._hurries_until:
            self._wake.set()
        self._hurries_until = now + _HURRY_S

    def _run(self) -> None:
        clock = SteadyTime()
        while not self._stop.is_set():
            self.turn(clock())
            hurries = time.monotonic() < self._hurries_until or self.outbox.unsettled or self.inbox.counts
            self._wake.wait(self._poll_s if hurries else _QUIET_POLLS * self._poll_s)
            self._wake.clear()

    def turn(self, now: float) -> None:
        """Read and write all documents that are due at `now`, Unix time in seconds.

        Each step catches its own errors: a document that cannot be read must not stop the writing of others.
        """
        failures: set[str] = set()
        for step in (
            self._read_learned, self._read_knobs, self._read_phases, self._read_ingress_reports,
            self._read_batches, self._exchange_versions,
            self._read_nodes, self._read_resources, self._write_decisions, self._write_status,
            self._write_learned, self._send_spans, self._read_pending_pods,  # last: it may take seconds
        ):  # fmt: skip
            try:
                step(now)
            except Exception as error:  # a lost GCS must not end the thread, because the GCS may come back
                text = f"{type(error).__name__}: {error}"
                if text not in self._failures | failures:
                    logger.exception("autoscaling of %s: could not read or write documents", self._app)
                failures.add(text)
            # Before `learned` is read, a write would replace it. After `stop`, a write would replace
            # documents of the next policy.
            if self.inbox.learned is None or self._stop.is_set():
                break
        self._failures = failures

    def _read_learned(self, now: float) -> None:
        if self.inbox.learned is not None:
            return
        learned, cold_starts = read_document(LEARNED, self._app, _parse_learned) or ({}, {})
        records = read_document(DECISIONS, self._app, parse_records) or ()
        deployments = {name: Deployment(cold_starts=seen) for name, seen in cold_starts.items()}
        self.inbox = replace(self.inbox, learned=Learned(learned, records), deployments=deployments)

    def _read_knobs(self, now: float) -> None:
        served = read_document(KNOBS, self._app, read_served)
        if served is not None:
            self.inbox = replace(self.inbox, served=served)

    def _read_phases(self, now: float) -> None:
        everything = self._due("phases", _IDLE_PHASES_S, now)
        models = self._models()
        names = [name for name in models if everything or name in self.outbox.unsettled]
        # Remove the phase documents of models that are no longer served.
        removed = written_deployments(self._app) - models.keys() if everything and models else set()
        found = read_phases(self._app, [*names, *removed])
        deployments = self._remembered_deployments()
        timed = {name: self._own_clock.phases(name, found[name].existing, now, now) for name in removed}
        for name in names:
            phases = found[name]
            known = deployments.get(name, Deployment())
            cold_starts = known.cold_starts.add({**phases.left_behind, **phases.existing})
            timed[name] = self._own_clock.phases(name, phases.existing, now, now)
            deployments[name] = replace(known, phases=timed[name], cold_starts=cold_starts)
        self.inbox = replace(self.inbox, deployments=deployments)
        if everything:
            self._done_at["phases"] = now
        for name, phases in found.items():
            for replica, document in timed[name].items():
                if document["phase"] == FAILED and now - document["since"] > _FORGOTTEN_S:
                    forget_phase(self._app, name, replica)
            nodes = {node.name for node in self._nodes()} if phases.left_behind else set()
            for replica, last in phases.left_behind.items():
                if self._stop.is_set():
                    return  # the next policy counts the loss
                forget_phase(self._app, name, replica)  # first: if it fails, the next turn counts the loss
                if (last["phase"] == "ready" or "cause" in last) and name in models:
                    self.losses.append(Loss.of(name, replica, last, nodes))

    def _remembered_deployments(self) -> dict[str, Deployment]:
        kept = self.inbox.deployments
        if self.inbox.served is None or self.outbox.memories is None:
            return dict(kept)
        names = self._models().keys() | self.outbox.memories.keys()
        return {name: known for name, known in kept.items() if name in names}

    def _read_ingress_reports(self, now: float) -> None:
        reports = read_reports(self._app)
        stamps = {replica: report.at for replica, report in reports.items()}
        # If stamps were believed, reports of a replica whose clock is behind would be removed at once.
        written_at = self._own_clock.times("ingress reports", stamps, now, now, believed=False)
        for replica in [name for name, at in written_at.items() if now - at > _REPORT_FORGOTTEN_S]:
            forget_report(self._app, replica)
            del reports[replica]
        self.inbox = replace(self.inbox, ingress_reports=reports)

    def _read_batches(self, now: float) -> None:
        stored = read_document(BATCHES, self._app, parse_backlogs)
        found: Mapping[str, BatchBacklog] = {}
        if stored is not None:
            written_at = self._own_clock.times(BATCHES, {BATCHES: stored[0]}, now, now, believed=False)
            found = stored[1] if now - written_at[BATCHES] < _REPORT_FORGOTTEN_S else {}
        self.inbox = replace(self.inbox, batches=found)

    def _exchange_versions(self, now: float) -> None:
        models = self._models()
        versions = {model.name for model in models.values() if model.version_of}
        if not versions and not (models and self._due("shares", _IDLE_PHASES_S, now)):
            return
        self._done_at["shares"] = now
        while self.shares:
            put_share(self._app, *self.shares[0])
            self.shares.popleft()
        counts = read_counts(self._app)
        stamps = {replica: each.at for replica, each in counts.items()}
        written_at = self._own_clock.times("counts", stamps, now, now, believed=False)
        for replica in [name for name, at in written_at.items() if now - at > _REPORT_FORGOTTEN_S]:
            forget_counts(self._app, replica)
        shares = read_shares(self._app)
        for removed in shares.keys() - versions:
            forget_share(self._app, removed)  # else a later version of this name would begin with it
        self.inbox = replace(self.inbox, shares=shares, counts=counts)

    def _read_nodes(self, now: float) -> None:
        nodes = self.inbox.nodes if self.outbox.look_at_nodes else None
        if self.outbox.look_at_nodes and (nodes is None or self._due("nodes", _NODES_S, now)):
            self._done_at["nodes"] = now
            nodes = self._nodes()
        self.inbox = replace(self.inbox, nodes=nodes)

    def _read_resources(self, now: float) -> None:
        if not self._due("resources", _RESOURCES_S if self.outbox.unsettled else _IDLE_RESOURCES_S, now):
            return
        nodes = self._nodes()
        available, total = Counter[str](), Counter[str]()
        for node in nodes:
            available.update(node.free)
            total.update(node.total)
        served, deployments = self.inbox.served, dict(self.inbox.deployments)
        zygote = served is not None and served.zygote
        warmed = (read_document(WARMED, self._app, parse_warmed) if zygote else None) or frozenset()
        for name, model in self._models().items():
            no_room = shortage(available, total, model.resources)
            warm = [node for node in nodes if (node.name, model.name) in warmed]
            warm_node = any(not lacking(node.free, model.resources) for node in warm)
            large = any(not lacking(node.total, model.resources) for node in warm)
            known = deployments.get(name, Deployment())
            deployments[name] = replace(known, no_room=no_room, warm_node=warm_node, warmed=large)
        self.inbox = replace(self.inbox, deployments=deployments)
        self._done_at["resources"] = now

    def _read_pending_pods(self, now: float) -> None:
        if not self.outbox.unsettled:
            self.inbox = replace(self.inbox, coming=())
        elif self._pending_pods.enabled and self._due("pods", _KUBERNETES_S, now):
            self._done_at["pods"] = now
            why, listed = self._pending_pods.read(), self._pending_pods.coming
            since = self._own_clock.times("pods", {each.name: each.since for each in listed}, now, now)
            coming = tuple(replace(each, since=since[each.name]) for each in listed)
            self.inbox = replace(self.inbox, why_pods_wait=why, coming=coming)

    def _due(self, kind: str, interval_s: float, now: float) -> bool:
        """Return whether `interval_s` has passed since `kind` was handled, or the clock was set back."""
        return not 0 <= now - self._done_at.get(kind, 0.0) < interval_s

    def _models(self) -> Mapping[str, ServedModel]:
        return self.inbox.served.engines() if self.inbox.served is not None else {}

    def _write_decisions(self, now: float) -> None:
        seq = self.outbox.decisions_seq
        if seq != self._written_seq:
            put_document(DECISIONS, self._app, self.outbox.decisions)
            self._written_seq = seq

    def _send_spans(self, now: float) -> None:
        served = self.inbox.served
        traces = None if served is None else served.traces
        self._decision_spans.send(traces, self.outbox.decisions, self.inbox.ingress_reports, time.time())

    def _write_status(self, now: float) -> None:
        status = self.outbox.status
        if status and (status != self._written_status or self._due("status", _STATUS_S, now)):
            put_document(STATUS, self._app, {"at": now, **status})
            self._written_status = status
            self._done_at["status"] = now

    def _write_learned(self, now: float) -> None:
        memories = self.outbox.memories
        if memories is None or not self._due("learned", _LEARNED_S, now):
            return
        learned = {
            "memories": {name: asdict(memory) for name, memory in memories.items()},
            "cold_starts": {
                name: known.cold_starts.startups for name, known in self.inbox.deployments.items()
            },
        }
        put_document(LEARNED, self._app, learned)
        self._done_at["learned"] = now


def _parse_learned(document: Any) -> tuple[dict[str, Memory], dict[str, ColdStarts]]:
    """Parse a document of `_write_learned`. Raises if a part is missing."""
    memories = {
        str(name): Memory(
            restore(memory["state"]),
            str(memory["identity"]),
            tuple((str(identity), restore(state)) for identity, state in memory["former"]),
        )
        for name, memory in document["memories"].items()
    }
    startups = _COLD_STARTS.validate_python(document["cold_starts"])
    return memories, {name: ColdStarts(seen) for name, seen in startups.items()}
