"""The models that share a fleet, and which replicas of one node must go for another replica to fit. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from serve_app.wire.resources import Node, Resources, add, lacking

IDLE_STARTS = 0.5
"""After this idle time, in starts, a model's replicas give way to waiting requests. A client that calls two
models in turn then waits for 1.5 starts at most, and at most two thirds of a place's time are starts."""
KEEP_STARTS = 4.0
"""For so many starts a replica in use is kept, so that at most a fifth of its time was its start."""
GAIN = 1.0 + 2.0 / KEEP_STARTS
"""The taker must serve so many times the requests that are lost: in `KEEP_STARTS`, two starts' worth more."""
TURN_STARTS = 10.0
LEAST_TURN_S = 30.0


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica that holds resources of a node."""

    name: str
    node: str
    ready_s: float | None = None
    """Seconds since it became ready; None while it starts or drains."""


@dataclass(frozen=True, slots=True)
class Member:
    """One model, or one variant of it: what its own policy decided, its replicas, and what they are worth."""

    key: str
    """The engine deployment."""
    name: str
    wanted: int
    """The target by the model's own policy."""
    claim: int
    """The replicas that waiting and running requests of other lanes than `background` need now."""
    minimum: int
    """The replicas that the model has without any request. No other model takes them."""
    need: Resources
    """Resources of one replica. A replica over several nodes counts as if it needed all on one node."""
    start_s: float
    target: int
    """The target in force."""
    replicas: tuple[Replica, ...] = ()
    """The ready and the starting replicas."""
    draining: tuple[Replica, ...] = ()
    placing: int = 0
    """Replicas that have resources, but have not said on which node."""
    waiting: float = 0.0
    """Requests that wait, without the lane `background`."""
    held_s: float = 0.0
    """The seconds for which the oldest request has waited."""
    running: float = 0.0
    rps: float = 0.0
    capacity_rps: float = 1.0
    idle_s: float = 0.0
    weight: float = 1.0
    turn_s: float | None = None
    gives: bool = True
    """Whether other models may take replicas at all."""
    silent: bool = False
    """Whether too few replicas report to take one now."""
    has_sibling: bool = False
    """Whether another variant of the model has a replica, or asks for the model's first one."""
    spares: str = ""
    """The name of the model whose replicas this model never takes."""

    @property
    def present(self) -> int:
        """Replicas that have resources and do not drain."""
        return len(self.replicas) + self.placing

    @property
    def has_none(self) -> bool:
        """Whether the model has no replica of any variant."""
        return not self.present and not self.has_sibling

    @property
    def claimed(self) -> int:
        """The replicas for which this model may take from others."""
        return min(max(self.claim, self.minimum), self.wanted)

    @property
    def idle(self) -> bool:
        """Whether the model has been idle for long enough to give way."""
        return self.idle_s >= IDLE_STARTS * self.start_s

    @property
    def keep_s(self) -> float:
        """The least seconds for which a replica in use is kept after its start."""
        return KEEP_STARTS * self.start_s

    @property
    def turn(self) -> float:
        """The seconds after which a replica in use gives way to a model without any replica."""
        given = self.turn_s if self.turn_s is not None else max(TURN_STARTS * self.start_s, LEAST_TURN_S)
        return max(given, self.keep_s)

    def served(self, replicas: int) -> float:
        """Return the weighted requests per second that this many replicas serve within their target."""
        load = 0.0 if self.idle else self.rps + (self.waiting + self.running) / max(self.keep_s, 1.0)
        return self.weight * min(load, max(replicas, 0) * self.capacity_rps)

    @property
    def gain(self) -> float:
        """What one more replica would serve."""
        return self.served(self.present + 1) - self.served(self.present)


Victim = tuple[Member, Replica]
MayGive = Callable[[Member, Replica], bool]


def _ready_for(member: Member, replica: Replica, seconds: float) -> bool:
    return not member.silent and replica.ready_s is not None and replica.ready_s >= seconds


def gives_idle(member: Member, replica: Replica) -> bool:
    """Whether the replica is ready, and its model idle or with more replicas than its requests need."""
    unused = member.idle or member.present > member.claimed
    return unused and _ready_for(member, replica, IDLE_STARTS * member.start_s)


def gives_kept(member: Member, replica: Replica) -> bool:
    """Whether the replica has served for four starts, or its model has no request at this moment."""
    quiet = (
        not member.waiting
        and not member.running
        and _ready_for(member, replica, IDLE_STARTS * member.start_s)
    )
    return quiet or _ready_for(member, replica, member.keep_s)


def gives_turn(member: Member, replica: Replica) -> bool:
    """Whether the replica's turn is over, or its model is idle."""
    return _ready_for(member, replica, member.turn) or gives_idle(member, replica)


def reports(member: Member, replica: Replica) -> bool:
    """Whether the replica can give its place at the end of its turn. A young replica has not reported yet."""
    return not member.silent or (replica.ready_s or 0.0) < member.keep_s


def remaining_s(victims: Sequence[Victim]) -> float:
    """Return the seconds until the turns of all `victims` are over."""
    return max(
        0.0 if gives_idle(member, replica) else member.turn - (replica.ready_s or 0.0)
        for member, replica in victims
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """Replicas of one node that must go for another replica to fit there."""

    node: str
    victims: tuple[Victim, ...]
    loss: float
    """The weighted requests per second that are lost."""

    def reason(self, taker: Member) -> str:
        """Return the sentence that explains the hand-over."""
        parts = []
        for key in dict.fromkeys(member.key for member, _ in self.victims):
            given = [victim for victim in self.victims if victim[0].key == key]
            member = given[0][0]
            gives = "gives its place" if len(given) == 1 else f"gives {len(given)} places"
            if member.idle or not (member.running + member.waiting or member.has_sibling):
                parts.append(f"{member.name} has been idle for {member.idle_s:.0f} s and {gives}")
            elif len(given) <= member.present - member.claimed:
                of = f" of {member.key.partition('@')[2]}" if member.has_sibling else ""
                replicas = f"{member.claimed} of {member.present} replicas{of}"
                parts.append(f"{member.name} needs {replicas} and {gives}")
            elif self.loss * GAIN <= taker.gain:
                parts.append(f"{member.name} loses fewer requests and {gives}")
            else:
                parts.append(f"the turn of {member.name} is over and it {gives}")
        return f"{taker.name} waits; {'; '.join(parts)}."


def best_plan(
    taker: Member,
    members: Sequence[Member],
    nodes: Sequence[Node],
    free: Mapping[str, Mapping[str, float]],
    taken: frozenset[str],
    may_give: MayGive,
    *,
    soonest: bool = False,
) -> Plan | None:
    """Return the replicas, all on one node, that cost the least and make room for one replica of `taker`.

    Args:
        taker: The model that needs room.
        members: All models.
        nodes: The nodes of the cluster.
        free: What is free on each node, and what already drains there.
        taken: The names of replicas that are promised to others.
        may_give: Whether a replica may go.
        soonest: Prefer the replicas whose turns end first to those that cost the least.
    """
    plans = []
    for node in nodes:
        if lacking(node.total, taker.need):
            continue
        victims = _victims(taker, members, node.name, dict(free[node.name]), taken, may_give, soonest)
        if victims:
            counts = [
                (member, sum(m.key == member.key for m, _ in victims))
                for member in members
                if any(m.key == member.key for m, _ in victims)
            ]
            loss = sum(
                member.served(_left(member, taken)) - member.served(_left(member, taken) - count)
                for member, count in counts
            )
            plans.append(Plan(node.name, tuple(victims), loss))
    if soonest:
        return min(plans, key=lambda plan: (remaining_s(plan.victims), plan.loss), default=None)
    return min(plans, key=lambda plan: (plan.loss, _rank(plan.victims[-1])), default=None)


def _left(member: Member, taken: frozenset[str]) -> int:
    return member.present - sum(replica.name in taken for replica in member.replicas)


def _victims(
    taker: Member,
    members: Sequence[Member],
    node: str,
    free: dict[str, float],
    taken: frozenset[str],
    may_give: MayGive,
    soonest: bool,
) -> list[Victim]:
    """Return the replicas of `node` that must go, none of them needlessly; none if they are not enough."""
    candidates: list[tuple[tuple[float, ...], Victim]] = []
    of_model: dict[str, int] = {}
    """By name, how many replicas of all variants may go."""
    for member in members:
        left = _left(member, taken)
        siblings = [m for m in members if m.name == member.name] if member.has_sibling else [member]
        # A model's last replica goes to models without any, not to those that want one more. A replica that
        # the model itself ends is none.
        all_left = left + sum(min(_left(m, taken), m.wanted) for m in siblings if m is not member)
        of_model[member.name] = min(of_model.get(member.name, all_left), all_left - int(not taker.has_none))
        spare = min(left - member.minimum, of_model[member.name]) if member.gives else 0
        if may_give is gives_idle and not member.idle:
            spare = min(spare, left - member.claimed)
        if (
            member.name in (taker.name, taker.spares)
            or spare <= 0
            or not lacking_any(free, taker.need, member.need)
        ):
            continue
        here = [r for r in member.replicas if r.node == node and r.name not in taken and may_give(member, r)]
        here.sort(key=lambda replica: -(replica.ready_s or 0.0))
        for index, replica in enumerate(here[:spare]):
            victim = (member, replica)
            cost = member.served(left - index) - member.served(left - index - 1)
            order = remaining_s([victim]) if soonest else 0.0
            candidates.append(((order, cost, *_rank(victim)), victim))
    victims: list[Victim] = []
    for _, victim in sorted(candidates, key=lambda candidate: candidate[0]):
        if not (short := lacking(free, taker.need)):
            break
        if of_model[victim[0].name] > 0 and any(victim[0].need.get(name, 0.0) > 0 for name in short):
            of_model[victim[0].name] -= 1
            victims.append(victim)
            add(free, victim[0].need)
    if lacking(free, taker.need):
        return []
    for victim in reversed(victims[:-1]):  # the costliest first: a later, larger replica may be enough
        without = dict(free)
        add(without, victim[0].need, -1.0)
        if not lacking(without, taker.need):
            victims.remove(victim)
            free = without
    return victims


def lacking_any(free: Resources, need: Resources, given: Resources) -> bool:
    """Whether `given` has any resource of which `free` has too little for `need`."""
    return any(given.get(name, 0.0) > 0 for name in lacking(free, need))


def _rank(victim: Victim) -> tuple[float, float]:
    """Put the model with the fewest recent requests first, then the model that has been idle for longest."""
    member, _ = victim
    return member.weight * member.rps, -member.idle_s
