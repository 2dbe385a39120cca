"""The adapter's side of the ingress's own scaling: from Ray's contexts to a decision, and its memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serve_app.cluster.ingress_room import Resources, room_for_ingress, share_nodes
from serve_app.controller.contexts import ongoing_of_ingress
from serve_app.controller.start_times import count_phases
from serve_app.controller.sync import Deployment, Inbox
from serve_app.policy.ingress_scaling import IngressDecision, decide_ingress
from serve_app.wire.served_models import ServedApplication


class IngressFleet:
    """Decides how many ingress replicas there are, and never takes room that an engine replica needs."""

    def __init__(self) -> None:
        self._peaks: tuple[tuple[float, int], ...] = ()
        self.wants_more = False
        """Whether more replicas are wanted than asked for: the nodes' resources are worth a look."""

    def decide(
        self, ctx: Any, engines: Mapping[str, Any], served: ServedApplication, inbox: Inbox, now: float
    ) -> IngressDecision:
        """The ingress's target, from its context and those of the engine deployments by name."""
        decision = decide_ingress(
            ongoing_of_ingress(ctx.raw_metrics or {}, now),
            ctx.current_num_replicas,
            ctx.target_num_replicas,
            served.ingress,
            self._peaks,
            now,
            _room(ctx, engines, served, inbox, now),
        )
        self._peaks = decision.peaks
        self.wants_more = decision.wanted > ctx.target_num_replicas
        return decision


def _room(
    ctx: Any, engines: Mapping[str, Any], served: ServedApplication, inbox: Inbox, now: float
) -> int | None:
    """Replicas that may be added; None where ingress and engines never compete."""
    need = served.ingress_resources
    if not any(amount > 0 for amount in need.values()):
        return None
    if inbox.nodes is None:
        return 0  # asked for as soon as more are wanted, and known a moment later
    if not share_nodes(inbox.nodes, need, [model.resources for model in served.models.values()]):
        return None
    most = served.ingress.max_replicas
    unplaced: int = max(0, ctx.target_num_replicas - ctx.current_num_replicas)
    return max(0, room_for_ingress(inbox.nodes, need, _awaited(engines, served, inbox, now), most) - unplaced)


def _awaited(
    engines: Mapping[str, Any], served: ServedApplication, inbox: Inbox, now: float
) -> list[Resources]:
    """Each engine replica that has no place yet, and one for each model at zero, whatever its traffic.

    A model at zero may wake at any time, and its requests would be held by ingress replicas that have its
    room. A replica whose process has written down a phase has its place; for the second or two before that
    it is counted twice.
    """
    awaited: list[Resources] = []
    for name, ctx in engines.items():
        model = served.models[name]
        phases = inbox.deployments.get(name, Deployment()).phases
        running = frozenset(str(replica.unique_id) for replica in ctx.running_replicas)
        placed = count_phases(phases, running, now).starting
        missing = max(0, ctx.target_num_replicas - ctx.current_num_replicas - placed)
        awaited += [model.resources] * (missing if ctx.target_num_replicas else 1)
    return awaited
