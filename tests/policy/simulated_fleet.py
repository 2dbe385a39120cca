"""A small fleet of several models in simulated time: replicas start, serve, drain and end on nodes.

Each model has a plain policy of its own, and the mix of `variant_mix` if it has variants. The cluster gives
free room to any pending replica, as Ray does.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import ceil
from random import Random

from serve_app.controller.decided import Decided, Part, as_siblings, split
from serve_app.policy.decide import Claim, Decision
from serve_app.policy.fleet_members import Member, Replica
from serve_app.policy.fleet_share import Grant, SharingState, share
from serve_app.policy.reports import Snapshot
from serve_app.policy.variant_decision import VariantNow
from serve_app.policy.variant_mix import Offer, choose
from serve_app.policy.variant_state import VariantMixState, VariantState
from serve_app.settings.knobs import Knobs
from serve_app.wire.resources import ComingNode, Node, Resources, add, lacking
from serve_app.wire.served_models import ServedModel, ServedVariant

TICK_S = 0.5
BATCH = 4
AWAKE_S = 300.0
REPORTS_S = 1.5
"""A new replica says on which node it is after this time."""
PENDING_S = 5.0
"""After this time without a place, a replica of a hand-over counts only once it has reported."""


@dataclass
class Running:
    name: str
    node: str
    began: float
    ready_at: float
    requests: list[float] = field(default_factory=list)
    """When each request ends."""
    drains: bool = False
    unknown: bool = False
    """Whether nobody knows of the replica until it reports."""


@dataclass
class Model:
    """A model, or one variant: the variants of a model have its name and the same lists of requests."""

    name: str
    variant: str = ""
    usd_per_hour: float = 1.0
    preemptible: bool = False
    on_demand: int = 0
    memory: VariantState = field(default_factory=lambda: VariantState(node_waits_s=(1.0,)))
    mix: VariantMixState = field(default_factory=VariantMixState)
    need: Resources = field(default_factory=lambda: {"GPU": 1.0})
    start_s: float = 3.0
    minimum: int = 0
    most: int = 4
    weight: float = 1.0
    turn_s: float | None = None
    arrivals: list[tuple[float, float]] = field(default_factory=list)
    """Time and seconds of service of each request, in order."""
    waiting: list[tuple[float, float]] = field(default_factory=list)
    replicas: list[Running] = field(default_factory=list)
    pending_since: list[float] = field(default_factory=list)
    seen: list[float] = field(default_factory=list)
    busy_at: float = -1e9
    wanted: int = 0
    target: int = 0
    longest_wait_s: float = 0.0
    """The longest time without any ready replica while a request waited."""
    without_since: float | None = None

    @property
    def key(self) -> str:
        return f"{self.name}@{self.variant}" if self.variant else self.name

    def in_kinds(self, *kinds: tuple[Resources, float, bool]) -> "list[Model]":
        """The variants: what a replica needs, its price, and whether it is preemptible."""
        return [
            replace(
                self, variant=f"v{n}", need=need, usd_per_hour=usd, preemptible=spot,
                replicas=[], pending_since=[],
            )
            for n, (need, usd, spot) in enumerate(kinds)
        ]  # fmt: skip

    @property
    def turn(self) -> float:
        given = self.turn_s if self.turn_s is not None else max(10 * self.start_s, 30.0)
        return max(given, 4 * self.start_s)

    def up(self) -> list[Running]:
        return [replica for replica in self.replicas if not replica.drains]

    @property
    def running(self) -> int:
        return sum(len(replica.requests) for replica in self.replicas)


class SimulatedFleet:
    def __init__(self, models: Sequence[Model], nodes: Sequence[Resources], seed: int = 0) -> None:
        self.models = list(models)
        self.nodes = {f"n{index}": dict(total) for index, total in enumerate(nodes)}
        self.random = Random(seed)
        self.state = SharingState()
        self.grants: dict[str, Grant] = {}
        self.now = 0.0
        self.drains = 0
        self.starts = 0
        self.starting_s = 0.0
        self.held_s = 0.0
        self.taken_in_use: list[tuple[float, float]] = []
        """The seconds of the start and of the whole life of each replica that others took in use."""
        self.coming: list[tuple[ComingNode, float]] = []
        """Nodes that a node autoscaler starts, and when each joins."""
        self.identical = True
        self.fewest_of_minimum: dict[str, int] = {}
        self.broken: list[str] = []
        """The promises to models with variants that a hand-over broke."""
        self._names = count()

    def family(self, model: Model) -> list[Model]:
        return [each for each in self.models if each.name == model.name]

    def free(self) -> dict[str, dict[str, float]]:
        free = {name: dict(total) for name, total in self.nodes.items()}
        for model in self.models:
            for replica in model.replicas:
                add(free[replica.node], model.need, -1.0)
        return free

    def run(self, until: float, *, shared: bool = True) -> None:
        while self.now < until:
            self.now += TICK_S
            self._serve()
            self._decide(shared=shared)
            self._place()

    def _serve(self) -> None:
        for model in self.models:
            while model.arrivals and model.arrivals[0][0] <= self.now:
                model.waiting.append(model.arrivals.pop(0))
                model.seen.append(self.now)
            for replica in list(model.replicas):
                replica.requests = [end for end in replica.requests if end > self.now]
                if replica.drains and not replica.requests:
                    model.replicas.remove(replica)
                self.held_s += TICK_S
                self.starting_s += TICK_S * (replica.ready_at > self.now)
            for replica in model.up():
                while model.waiting and replica.ready_at <= self.now and len(replica.requests) < BATCH:
                    replica.requests.append(self.now + model.waiting.pop(0)[1])
            family = self.family(model)
            ready = any(replica.ready_at <= self.now for each in family for replica in each.up())
            if model.waiting and not ready:
                model.without_since = self.now if model.without_since is None else model.without_since
                model.longest_wait_s = max(model.longest_wait_s, self.now - model.without_since)
            else:
                model.without_since = None
            if model.waiting or any(each.running for each in family):
                model.busy_at = self.now
            if model.minimum:
                least = min(self.fewest_of_minimum.get(model.name, 99), len(model.up()))
                if len(model.up()) >= model.minimum or model.name in self.fewest_of_minimum:
                    self.fewest_of_minimum[model.name] = least

    def member(self, model: Model) -> Member:
        load = len(model.waiting) + model.running
        model.seen[:] = [at for at in model.seen if self.now - at < 60]
        claim = min(ceil(load / BATCH), model.most)
        awake = int(self.now - model.busy_at < AWAKE_S)
        model.wanted = max(claim, awake, model.minimum)
        young = [r for r in model.up() if self.now - r.began < REPORTS_S]
        replicas = tuple(
            Replica(r.name, r.node, self.now - r.ready_at if r.ready_at <= self.now else None)
            for r in model.up()
            if r not in young
        )
        draining = tuple(Replica(r.name, r.node) for r in model.replicas if r.drains)
        return Member(
            model.name, model.name, model.wanted, claim, model.minimum, model.need, model.start_s,
            model.target, replicas, draining, sum(not r.unknown for r in young),
            waiting=len(model.waiting), running=model.running, rps=len(model.seen) / 60,
            idle_s=self.now - model.busy_at, weight=model.weight, turn_s=model.turn_s,
        )  # fmt: skip

    def siblings(self, family: list[Model]) -> list[Member]:
        """The members of a model with variants, divided as the controller does."""
        first, takers = family[0], {handover.taker for handover in self.state.handovers}
        whole = self.member(replace(first, replicas=[r for each in family for r in each.replicas]))
        parts, offers, each_rps = {}, [], BATCH / 2.0
        for each in family:
            ready = sum(replica.ready_at <= self.now for replica in each.up())
            placed = sum(self.now - replica.began >= REPORTS_S for replica in each.up())
            pending_s = self.now - min(each.pending_since, default=self.now)
            pending = 0 if each.key in takers or pending_s < 5 else len(each.pending_since)
            given = each.key in takers
            each.memory = each.memory.learn_nodes(pending, pending_s, placed, self.now, given=given)
            memory, now = each.memory, self.now
            offers.append(
                Offer(
                    each.variant, each.usd_per_hour, 1.0, 0, each.most, each.preemptible, 0, True,
                    each.start_s, ready, 0, placed, memory.is_dry(now), memory.is_tried(now),
                )
            )  # fmt: skip
            served = ServedVariant(
                each.variant, each.key, each.need, "", each.usd_per_hour, each.preemptible, 0, each.most, 1.0
            )
            snapshot = Snapshot(target=each.target, ready=ready, cold_node_start_s=each.start_s)
            parts[each.key] = Part(None, VariantNow(served, snapshot, placed=placed))
        mix, first.mix = choose(offers, float(whole.wanted), first.on_demand, 10.0, first.mix, self.now)
        targets = {each.key: mix.targets[each.variant] for each in family}
        decision = Decision(
            sum(targets.values()), 0, "", "", "",
            claim=Claim(whole.claim, whole.idle_s, first.start_s, silent=False),
            signals={
                "waiting_requests": whole.waiting, "running_requests": whole.running,
                "arrivals_60s_rps": whole.rps,
            },
            variants={each.variant: {"capacity_rps": each_rps, "meets_targets": 1.0} for each in family},
        )  # fmt: skip
        knobs = Knobs(min_replicas=first.minimum, max_replicas=first.most, min_on_demand=first.on_demand)
        served_model = ServedModel(first.name, first.name, knobs)
        decided = Decided(
            served_model, None, parts[first.key].variant.snapshot, decision, None, targets, "", parts
        )
        engines = {each.key: ServedModel(first.name, each.key, knobs, each.need) for each in family}
        found = []
        for key, part in split(decided, engines, takers).items():
            each = next(each for each in family if each.key == key)
            signals = part.decision.signals
            found.append(
                replace(
                    self.member(each), key=key, wanted=targets[key], claim=part.decision.claim.replicas,
                    minimum=part.model.knobs.min_replicas, capacity_rps=each_rps,
                    waiting=signals["waiting_requests"], running=signals["running_requests"],
                    rps=signals["arrivals_60s_rps"],
                )
            )  # fmt: skip
            each.wanted = targets[key]
        return as_siblings(found, takers)

    def _check(self, family: list[Model]) -> None:
        """Note what the hand-overs that begin now take from a model with variants."""
        stops = {name for each in family for name in self.grants[each.key].stop}
        keys = {each.key: each.name for each in self.models}
        for handover in self.state.handovers:
            if any(keys[giver] == keys[handover.taker] for giver, _ in handover.givers):
                self.broken.append(f"{self.now}: siblings")
        if not stops:
            return
        left = [(each, r) for each in family for r in each.up() if r.name not in stops]
        first = family[0]
        certain = sum(not each.preemptible for each, _ in left)
        taken_certain = any(r.name in stops for each in family if not each.preemptible for r in each.up())
        if len(left) < first.minimum:
            self.broken.append(f"{self.now}: min_replicas")
        if taken_certain and certain < first.on_demand and left:
            self.broken.append(f"{self.now}: min_on_demand")

    def _join(self) -> list[ComingNode]:
        for node, at in self.coming:
            if at <= self.now:
                self.nodes.setdefault(node.name, dict(node.total))
        return [node for node, at in self.coming if node.since <= self.now < at]

    def _decide(self, *, shared: bool) -> None:
        coming = self._join()
        free = self.free()
        nodes = [Node(total, free[name], name) for name, total in self.nodes.items()]
        members: list[Member] = []
        for model in self.models:
            if not model.variant:
                members.append(self.member(model))
            elif model is self.family(model)[0]:
                members += self.siblings(self.family(model))
        self.grants = {}
        if shared:
            self.grants, self.state = share(members, nodes, self.state, self.now, coming)
            for model in self.models:
                if model.variant and model is self.family(model)[0]:
                    self._check(self.family(model))
        for model in self.models:
            grant = self.grants.get(model.key, Grant(model.wanted))
            self.identical &= grant.target == model.wanted and not grant.why
            model.target = grant.target
            up = model.up()
            excess = len(up) + len(model.pending_since) - model.target
            while excess > 0 and model.pending_since:
                model.pending_since.pop()
                excess -= 1
            up.sort(key=lambda replica: (replica.name not in grant.stop, -replica.began))
            needed = min(ceil((len(model.waiting) + model.running) / BATCH), model.most)
            for replica in up[: max(excess, 0)]:
                replica.drains = True
                if replica.name in grant.stop and len(up) <= needed:
                    self.taken_in_use.append((replica.ready_at - replica.began, self.now - replica.began))
                self.drains += 1
            while len(model.up()) + len(model.pending_since) < model.target:
                model.pending_since.append(self.now)

    def _place(self) -> None:
        free = self.free()
        waiting = [model for model in self.models for _ in model.pending_since]
        self.random.shuffle(waiting)
        for model in waiting:
            fits = [node for node, left in free.items() if not lacking(left, model.need)]
            if fits:
                node = self.random.choice(fits)
                add(free[node], model.need, -1.0)
                waited_s = self.now - model.pending_since.pop()
                unknown = waited_s >= PENDING_S and any(
                    handover.taker == model.key for handover in self.state.handovers
                )
                name = f"{model.key}-{next(self._names)}"
                ready_at = self.now + model.start_s
                model.replicas.append(Running(name, node, self.now, ready_at, unknown=unknown))
                self.starts += 1
