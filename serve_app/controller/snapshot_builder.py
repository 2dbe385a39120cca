"""From Ray's contexts and the documents read to a snapshot for the policy."""

from __future__ import annotations

from typing import Any

from serve_app.controller.cold_starts import count_phases
from serve_app.controller.contexts import (
    engine_readings,
    ingress_readings,
    reported_readings,
    running_ids,
)
from serve_app.controller.mailbox import Deployment, Inbox
from serve_app.policy.snapshot import Capacity, Snapshot
from serve_app.wire.signals import IngressSignals, Reading

_PENDING_GRACE_S = 5.0
"""From asking for a replica to the first line of its constructor it takes Ray a second or two."""


class SnapshotBuilder:
    """Builds snapshots, and remembers since when replicas have been pending."""

    def __init__(self) -> None:
        self._pending_since: dict[str, float] = {}

    def build(self, name: str, ctx: Any, ingress: Any | None, inbox: Inbox, now: float) -> Snapshot:
        """Return the snapshot of engine deployment `name` from its context and that of the ingress."""
        known = inbox.deployments.get(name, Deployment())
        phases = count_phases(known.phases, running_ids(ctx), now)
        readings, ingress_ready = _ingress_side(name, ingress, inbox, now)
        return Snapshot(
            target=ctx.target_num_replicas,
            ready=ctx.current_num_replicas,
            ingress_ready=ingress_ready,
            engines=engine_readings(ctx.raw_metrics or {}, now),
            ingress=readings,
            draining=phases.draining,
            capacity=self._capacity(name, ctx, phases.starting, inbox, now),
            cold_start_s=known.cold_starts.total_s,
        )

    def _capacity(self, name: str, ctx: Any, starting: int, inbox: Inbox, now: float) -> Capacity:
        missing = max(0, ctx.target_num_replicas - ctx.current_num_replicas)
        starting = min(missing, starting)
        pending = missing - starting
        if not pending:
            self._pending_since.pop(name, None)
        pending_s = now - self._pending_since.setdefault(name, now) if pending else 0.0
        if pending_s < _PENDING_GRACE_S:
            return Capacity(missing)  # every start begins with a moment without a process
        reasons = (
            inbox.deployments.get(name, Deployment()).no_room,
            inbox.gpu_nodes.message if inbox.gpu_nodes is not None else "",
        )
        return Capacity(starting, pending, pending_s, "; ".join(filter(None, reasons)))


def _ingress_side(
    name: str, ctx: Any | None, inbox: Inbox, now: float
) -> tuple[dict[str, Reading[IngressSignals]], int]:
    """Return what ingress replicas report about a model, and how many of them there are.

    They are the replicas that run, and those that drain and still hold requests, which Ray leaves out.
    """
    reported = ingress_readings(ctx.raw_metrics or {}, name, now) if ctx is not None else {}
    written = reported_readings(inbox.ingress_reports, name, reported, now)
    if ctx is None:
        return written, max(1, len(written))
    return {**reported, **written}, ctx.current_num_replicas + len(written.keys() - running_ids(ctx))
