"""The adapter's side of the ingress's own scaling: from Ray's contexts to a decision, and its memory."""

from collections.abc import Mapping
from typing import Any

from serve_app.cluster.ray_resources import Resources, room_for_ingress, share_nodes
from serve_app.controller.contexts import count_phases, ongoing_of_ingress, running_ids
from serve_app.controller.mailbox import Deployment, Inbox
from serve_app.policy.ingress_scaling import IngressDecision, decide_ingress
from serve_app.wire.served_models import ServedApplication


class IngressFleet:
    """Decides how many ingress replicas there are, and never takes room that an engine replica needs."""

    def __init__(self) -> None:
        self._peaks: tuple[tuple[float, int], ...] = ()
        self.wants_more = False
        """Whether more replicas are wanted than asked for, so that the nodes' resources must be read."""

    def decide(
        self, ctx: Any, engines: Mapping[str, Any], served: ServedApplication, inbox: Inbox, now: float
    ) -> IngressDecision:
        """Decide from the context of the ingress and those of the engine deployments by name."""
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
    """Return the replicas that may be added; None where ingress and engines never compete."""
    need = served.ingress_resources
    if not any(amount > 0 for amount in need.values()):
        return None
    if inbox.nodes is None:
        return 0  # the nodes are read as soon as more replicas are wanted, which takes a moment
    if not share_nodes(inbox.nodes, need, [model.resources for model in served.models.values()]):
        return None
    unplaced: int = max(0, ctx.target_num_replicas - ctx.current_num_replicas)
    awaited: list[Resources] = []
    for name, engine in engines.items():
        phases = inbox.deployments.get(name, Deployment()).phases
        starting, _ = count_phases(phases, running_ids(engine), now)
        # A replica whose process has written down a phase has its node; for the second or two before that it
        # is counted twice. A model at zero may wake at any time, and its requests would be held by ingress
        # replicas that have taken its room.
        missing = engine.target_num_replicas - engine.current_num_replicas - starting
        awaited += [served.models[name].resources] * (missing if engine.target_num_replicas else 1)
    return max(0, room_for_ingress(inbox.nodes, need, awaited, served.ingress.max_replicas) - unplaced)
