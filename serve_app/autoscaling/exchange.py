"""The policy's correspondence: a thread that reads and writes documents, so that the policy never waits.

The policy runs in the event loop of Ray Serve's controller, ten times a second; a call to the GCS
there would hold up every deployment of the cluster.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray

from serve_app.autoscaling.cold_start import ColdStarts
from serve_app.autoscaling.served import Served, read_served
from serve_app.cluster.ingress_room import Node
from serve_app.cluster.kubernetes_nodes import GpuNodes, KubernetesNodes
from serve_app.cluster.ray_resources import judge, read_nodes
from serve_app.documents import DECISIONS, KNOBS, LEARNED, STATUS, get_document, put_document
from serve_app.ingress_reports import IngressReport, forget_report, read_reports
from serve_app.phases import forget_phase, read_phases

logger = logging.getLogger("ray.serve")

_POLL_S = 0.5
_IDLE_PHASES_S = 5.0
_RESOURCES_S = 2.0
_STATUS_S = 10.0
_LEARNED_S = 10.0
_KUBERNETES_S = 15.0
_NODES_S = 1.0
_REPORT_FORGOTTEN_S = 60.0
"""An ingress replica that holds requests reports twice a second: one this silent was killed."""
_FORGOTTEN_S = 3600.0
"""A phase document this old of a replica that does not run is left from one that was killed."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """What the documents say of one engine deployment."""

    phases: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    cold_starts: ColdStarts = field(default_factory=ColdStarts)
    no_room: str = ""
    """Why the cluster has no place for another replica, as far as it says; empty if it has."""


@dataclass(frozen=True, slots=True)
class Inbox:
    """What has been read. Replaced whole, so that a reader sees one moment."""

    served: Served | None = None
    deployments: Mapping[str, Deployment] = field(default_factory=dict)
    gpu_nodes: GpuNodes | None = None
    ingress_reports: Mapping[str, IngressReport] = field(default_factory=dict)
    """Of ingress replicas that hold requests, by replica, whether Ray counts them as running or not."""
    nodes: tuple[Node, ...] | None = None
    """The cluster's, while `Outbox.look_at_nodes` asks for them."""


@dataclass(slots=True)
class Outbox:
    """What is to be written; the policy replaces each part, the thread notices."""

    status: dict[str, Any] = field(default_factory=dict)
    decisions: list[dict[str, Any]] = field(default_factory=list)
    decisions_seq: int = 0
    learned: Callable[[], dict[str, Any]] = dict
    unsettled: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Running replicas of the deployments whose replicas are starting or stopping."""
    look_at_nodes: bool = False
    """Whether the ingress would have more replicas if there is room."""


class Exchange:
    """Reads and writes the documents of one application until it is stopped."""

    def __init__(self, app: str, cold_starts: Mapping[str, ColdStarts]) -> None:
        self._app = app
        self.inbox = Inbox(
            deployments={name: Deployment(cold_starts=seen) for name, seen in cold_starts.items()}
        )
        self.outbox = Outbox()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._written: tuple[dict[str, Any], float] = ({}, 0.0)
        self._written_seq = 0
        self._learned_at = 0.0
        self._phases_at = 0.0
        self._resources_at = 0.0
        self._nodes_at = 0.0
        self._kubernetes = KubernetesNodes()
        self._kubernetes_at = 0.0
        self._failure = ""
        self._thread = threading.Thread(target=self._run, name=f"autoscaling-{app}", daemon=True)

    def start(self) -> None:
        """Begin reading."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current turn, without waiting for it."""
        self._stop.set()
        self._wake.set()

    def send(self) -> None:
        """Have what is in the outbox written now rather than at the next turn."""
        self._wake.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._turn(time.time())
                self._failure = ""
            except Exception as error:  # a lost GCS must not end the thread: it comes back
                text = f"{type(error).__name__}: {error}"
                if text != self._failure:
                    logger.exception("autoscaling of %s: could not exchange documents", self._app)
                self._failure = text
            self._wake.wait(_POLL_S)
            self._wake.clear()

    def _turn(self, now: float) -> None:
        self._read(now)
        self._write(now)

    def _read(self, now: float) -> None:
        document = get_document(KNOBS, self._app)
        served = read_served(document) if document is not None else None
        deployments = dict(self.inbox.deployments)
        unsettled = self.outbox.unsettled
        everything = now - self._phases_at >= _IDLE_PHASES_S
        resources = bool(unsettled) and now - self._resources_at >= _RESOURCES_S
        available = ray.available_resources() if resources else {}
        total = ray.cluster_resources() if resources else {}
        for name, model in served.models.items() if served is not None else ():
            known = deployments.get(name, Deployment())
            phases, no_room = known.phases, known.no_room
            if everything or name in unsettled:
                phases = read_phases(self._app, name)
                self._sweep(name, phases, unsettled.get(name), now)
            if resources:
                no_room = judge(available, total, model.resources)
            deployments[name] = Deployment(phases, known.cold_starts.add(phases), no_room)
        gpu_nodes = self.inbox.gpu_nodes
        if unsettled and self._kubernetes.enabled and now - self._kubernetes_at >= _KUBERNETES_S:
            self._kubernetes_at = now
            gpu_nodes = self._kubernetes.read()
        if everything:
            self._phases_at = now
        if resources:
            self._resources_at = now
        self.inbox = Inbox(served, deployments, gpu_nodes, self._read_ingress_reports(now), self._look(now))

    def _read_ingress_reports(self, now: float) -> dict[str, IngressReport]:
        reports = read_reports(self._app)
        for replica in [name for name, report in reports.items() if now - report.at > _REPORT_FORGOTTEN_S]:
            forget_report(self._app, replica)
            del reports[replica]
        return reports

    def _look(self, now: float) -> tuple[Node, ...] | None:
        if not self.outbox.look_at_nodes:
            return None
        if self.inbox.nodes is None or not 0 <= now - self._nodes_at < _NODES_S:
            self._nodes_at = now
            return read_nodes()
        return self.inbox.nodes

    def _sweep(
        self, name: str, phases: Mapping[str, Mapping[str, Any]], running: frozenset[str] | None, now: float
    ) -> None:
        if running is None:
            return
        for replica, document in phases.items():
            if replica not in running and now - float(document["since"]) > _FORGOTTEN_S:
                forget_phase(self._app, name, replica)

    def _write(self, now: float) -> None:
        outbox = self.outbox
        if outbox.decisions_seq != self._written_seq:
            seq = outbox.decisions_seq
            put_document(DECISIONS, self._app, outbox.decisions)
            self._written_seq = seq
        status, written_at = self._written
        if outbox.status and (outbox.status != status or now - written_at >= _STATUS_S):
            put_document(STATUS, self._app, {"at": now, **outbox.status})
            self._written = (outbox.status, now)
        if now - self._learned_at >= _LEARNED_S:
            learned = outbox.learned()
            if learned:
                learned["cold_starts"] = {
                    name: list(deployment.cold_starts.startups)
                    for name, deployment in self.inbox.deployments.items()
                }
                put_document(LEARNED, self._app, learned)
                self._learned_at = now


def read_learned(app: str) -> tuple[dict[str, Any], dict[str, ColdStarts], list[dict[str, Any]]]:
    """What an earlier policy of `app` has left: states by deployment, start-ups, and decision records."""
    learned = get_document(LEARNED, app) or {}
    cold_starts = {
        name: ColdStarts(tuple((str(replica), dict(phases)) for replica, phases in startups))
        for name, startups in learned.get("cold_starts", {}).items()
    }
    return learned.get("states", {}), cold_starts, get_document(DECISIONS, app) or []
