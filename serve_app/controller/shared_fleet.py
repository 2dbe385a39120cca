"""The models' decisions, changed where models share places (`serve_app.policy.fleet_share`)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from serve_app.controller.contexts import count_phases, running_ids
from serve_app.controller.decided import Decided, as_siblings, merge, split
from serve_app.controller.document_exchange import Deployment, Inbox
from serve_app.patches.ray import stop_first
from serve_app.policy.fleet_members import KEEP_STARTS, Member, Replica
from serve_app.policy.fleet_share import PLACED_WITHIN_S, SharingState, share
from serve_app.wire.phases import DRAINING, FAILED
from serve_app.wire.resources import Resources, add, lacking
from serve_app.wire.served_models import ServedApplication
from serve_app.wire.versions import in_force


class SharedFleet:
    """Carries the sharing out, and remembers hand-overs."""

    def __init__(self) -> None:
        self._state = SharingState()
        self._ready_at: dict[str, float] = {}
        """By replica, since when it is ready, as first read. If the clock is set back, ages begin anew."""
        self._unexplained: list[tuple[float, dict[str, float]]] = []
        """What replicas that have not reported use, and when; for `PLACED_WITHIN_S`."""
        self.looks_at_nodes = False
        """Whether the nodes of the cluster must be read, because some replica has no place yet."""
        self.waits_for_nodes = False
        """Whether the nodes have not been read since then."""

    @property
    def deployments(self) -> frozenset[str]:
        """The engine deployments of the hand-overs under way."""
        return frozenset(
            name
            for handover in self._state.handovers
            for name in (handover.taker, *(giver for giver, _ in handover.givers))
        )

    @property
    def takers(self) -> frozenset[str]:
        """The engine deployments that get the places of these hand-overs."""
        return frozenset(handover.taker for handover in self._state.handovers)

    def share(
        self,
        decided: Mapping[str, Decided],
        ingress: Any | None,
        served: ServedApplication,
        inbox: Inbox,
        now: float,
    ) -> dict[str, Decided]:
        """Return the decisions by model, with targets that the fleet has places for.

        They are the same objects while every replica has a place, and while the nodes have not been read.
        """
        engines, takers = served.engines(), self.takers
        shares = served.model_preemption and len(decided) > 1
        by_model = [split(each, engines, takers) for each in decided.values() if shares]
        parts = {name: part for of_model in by_model for name, part in of_model.items()}
        short = any(_missing(part, inbox, now) > 0 for part in parts.values())
        wakes = any(_wakes(each) for each in decided.values())
        self.looks_at_nodes = shares and (short or wakes or bool(self._state.handovers))
        self.waits_for_nodes = self.looks_at_nodes and inbox.nodes is None
        if not self.looks_at_nodes:
            self._state = SharingState(drain_s=self._state.drain_s, nodes=self._state.nodes)
            self._unexplained = []
            return dict(decided)
        if inbox.nodes is None:
            return dict(decided)
        used = _unexplained(parts, ingress, served, inbox)
        room = _Unexplained(used, self._grown(used, parts, inbox, now))
        self._ready_at = {
            replica: min(now, self._ready_at.get(replica, document["since"]))
            for name in parts
            for replica, document in inbox.deployments.get(name, Deployment()).phases.items()
            if document["phase"] == "ready"
        }
        members: list[Member] = []
        for of_model in by_model:
            found = [self._member(each, decided, inbox, room, now) for each in of_model.values()]
            members += as_siblings(found, takers)
        known = [inbox.deployments.get(name, Deployment()) for name in parts]
        documents = [document for each in known for document in each.phases.values()]
        # Ray starts no replica on a node that is about to end.
        ends = {document.get("node") for document in documents if "notice_s" in document}
        nodes = [node for node in inbox.nodes if node.name not in ends]
        grants, self._state = share(members, nodes, self._state, now, inbox.coming)
        for name, grant in grants.items():
            if grant.stop:
                stop_first(parts[name].ctx.app_name, name, grant.stop)
        return {name: merge(each, grants) for name, each in decided.items()}

    def _grown(
        self, unexplained: Mapping[str, float], decided: Mapping[str, Decided], inbox: Inbox, now: float
    ) -> dict[str, float]:
        """Return what `unexplained` has grown by lately, without the places of hand-overs."""
        kept = [each for each in self._unexplained if 0.0 <= now - each[0] < PLACED_WITHIN_S]
        # A document may be newer than the reading of its node.
        used = {name: max(0.0, amount) for name, amount in unexplained.items()}
        self._unexplained = [*kept, (now, used)]
        grown = {
            name: amount - min(before.get(name, 0.0) for _, before in self._unexplained)
            for name, amount in used.items()
        }
        listed = {name for known in inbox.deployments.values() for name in known.phases}
        for handover in self._state.handovers:
            # A giver that is no longer listed holds its place for a moment; then the taker has it.
            if handover.taker in decided and listed.isdisjoint(name for _, name in handover.givers):
                add(grown, decided[handover.taker].model.resources, -1.0)
        return grown

    def _member(
        self, each: Decided, decided: Mapping[str, Decided], inbox: Inbox, room: "_Unexplained", now: float
    ) -> Member:
        model, decision, knobs, signals = each.model, each.decision, each.model.knobs, each.decision.signals
        known = inbox.deployments.get(model.deployment, Deployment())
        # The place that another replica gives is on a warm node, though no warm node has room now.
        measured_s = (replace(each.snapshot, warm_node=True) if known.warmed else each.snapshot).cold_start_s
        start_s = measured_s or decision.claim.start_s
        replicas, draining = self._replicas(known, running_ids(each.ctx), now)
        asked = each.ctx.target_num_replicas - len(replicas)
        placing = room.place(model.resources, asked, newly=each.snapshot.pending > 0)
        claim, least, spares = _claims(each, decided, inbox)
        minimum = max([least, *(t.replicas for t in decision.terms if t.name == "schedule")])
        failed_s = [
            now - document["since"] for document in known.phases.values() if document["phase"] == FAILED
        ]
        if failed_s and 0.0 <= min(failed_s) < KEEP_STARTS * start_s:
            # Another model would give its place for the next failure.
            claim, minimum = (min(count, len(replicas) + placing) for count in (claim, minimum))
        acts = knobs.mode == "act"
        arrivals = [signals.get(f"arrivals_{seconds}s_rps", 0.0) for seconds in (30, 60)]
        return Member(
            key=model.deployment,
            name=model.name,
            wanted=decision.target,
            claim=claim if acts else 0,
            minimum=minimum if acts else 0,
            need=model.resources,
            start_s=start_s,
            target=each.ctx.target_num_replicas,
            replicas=replicas,
            draining=draining,
            placing=placing,
            waiting=signals.get("waiting_requests", 0.0) + signals.get("held_requests", 0.0),
            held_s=signals.get("oldest_held_s", 0.0),
            running=signals.get("running_requests", 0.0),
            rps=max(arrivals),
            capacity_rps=signals.get("replica_capacity_rps", 1.0),
            idle_s=decision.claim.idle_s,
            weight=knobs.share_weight,
            turn_s=knobs.turn_s,
            gives=acts,
            silent=decision.claim.silent,
            spares=spares,
        )

    def _replicas(
        self, known: Deployment, running: frozenset[str], now: float
    ) -> tuple[tuple[Replica, ...], tuple[Replica, ...]]:
        """Return the ready and the starting replicas of a deployment, and the draining ones."""
        giving = {name for handover in self._state.handovers for _, name in handover.givers}
        replicas, draining = [], []
        for name in sorted(running | known.phases.keys()):
            document = known.phases.get(name, {"phase": ""})
            phase, node = document["phase"], document.get("node", "")
            if phase == DRAINING or (name in giving and name not in running):
                draining.append(Replica(name, node))
            elif name in running or phase != FAILED:
                served = name in running and name in self._ready_at
                replicas.append(Replica(name, node, now - self._ready_at[name] if served else None))
        return tuple(replicas), tuple(draining)


@dataclass(frozen=True, slots=True)
class _Unexplained:
    """The used resources that belong to no replica that has reported."""

    used: dict[str, float]
    newly: dict[str, float]
    """By how much `used` has grown lately."""

    def place(self, need: Resources, most: int, *, newly: bool) -> int:
        """Return how many of `most` replicas may have these resources, which then are theirs.

        For one to two seconds a replica has resources and no document, longer on a new node. After five
        seconds it is pending, and only resources that are `newly` used may be its own.
        """
        placing = 0
        while placing < most and not lacking(self.newly if newly else self.used, need):
            add(self.used, need, -1.0)
            add(self.newly, need, -1.0)
            placing += 1
        return placing


def _missing(each: Decided, inbox: Inbox, now: float) -> int:
    """Return how many replicas of the model's own target have no process that has reported."""
    known = inbox.deployments.get(each.model.deployment, Deployment())
    loading, _ = count_phases(known.phases, running_ids(each.ctx), now)
    return each.decision.target - each.snapshot.ready - loading


def _wakes(each: Decided) -> bool:
    """Return whether a burst is arriving at zero, so that the nodes are known when the target rises."""
    return not each.decision.target and each.decision.signals.get("held_requests", 0.0) > 0


def _claims(each: Decided, decided: Mapping[str, Decided], inbox: Inbox) -> tuple[int, int, str]:
    """Return a model's claim, its own `min_replicas`, and the model that it takes nothing from.

    `Canaries` gives a version `min_replicas` for its share, which are no reason to keep a place. The version
    claims its first replica while the old one has requests: without a replica it gets none. Until it has all
    conversations, it takes no place of the old version.
    """
    model, claim, least = each.model, each.decision.claim.replicas, each.model.knobs.min_replicas
    old = decided.get(model.version_of)
    if old is None or inbox.served is None:
        return claim, least, ""
    share = in_force(model.start_share, inbox.shares.get(model.name)).share
    if share > 0 and old.decision.claim.replicas > 0:
        claim = max(claim, 1)
    least = min(least, inbox.served.models[model.deployment].knobs.min_replicas)
    return claim, least, old.model.name if share < 1 else ""


def _unexplained(
    decided: Mapping[str, Decided], ingress: Any | None, served: ServedApplication, inbox: Inbox
) -> dict[str, float]:
    """Return the used resources of the cluster that belong to no replica that has reported."""
    used: dict[str, float] = {}
    for node in inbox.nodes or ():
        add(used, node.total)
        add(used, node.free, -1.0)
    for name, each in decided.items():
        phases = inbox.deployments.get(name, Deployment()).phases
        here = {replica for replica, document in phases.items() if document["phase"] != FAILED}
        add(used, each.model.resources, -len(here | running_ids(each.ctx)))
    for name, engine in served.engines().items():
        if name not in decided:
            documents = inbox.deployments.get(name, Deployment()).phases.values()
            add(used, engine.resources, -sum(document["phase"] != FAILED for document in documents))
    add(used, served.ingress_resources, -1.0 if ingress is None else -ingress.current_num_replicas)
    return used
