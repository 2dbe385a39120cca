"""Which model gets the next place of a shared fleet, and which model gives one. Pure: no Ray, clock or I/O.

A model whose requests wait for room takes the replica whose loss costs other models the fewest requests: at
once from a model that has been idle for half a start, after four starts if the taker would serve half as many
requests again, weighted by `share_weight`, and otherwise when the turn (`turn_s`) of a replica is over. It
waits for a coming node instead if the node is sooner, or at most two starts later than a replica in use.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf

from serve_app.policy.coming_nodes import NodeTimes, fits
from serve_app.policy.fleet_members import (
    GAIN,
    MayGive,
    Member,
    Plan,
    best_plan,
    gives_idle,
    gives_kept,
    gives_turn,
    remaining_s,
    reports,
)
from serve_app.wire.resources import ComingNode, Node, add, lacking

_DRAIN_S = 5.0
"""The assumed seconds of a hand-over until one has been measured."""
_COST_STARTS = 2.0
"""A hand-over of a replica in use costs two starts: that of the taker, and that of the giver afterwards."""
PLACED_WITHIN_S = 15.0
"""A place that has been free for this long without its taker goes to whoever needs it."""


@dataclass(frozen=True, slots=True)
class Handover:
    """A place on its way from one model, or several, to another."""

    taker: str
    node: str
    givers: tuple[tuple[str, str], ...]
    """Engine deployment and replica."""
    since: float
    had: int
    """The replicas that the taker had when the hand-over began."""
    why: str
    seen: float
    """When a giver was last listed."""


@dataclass(frozen=True, slots=True)
class SharingState:
    """What one decision leaves to the next."""

    handovers: tuple[Handover, ...] = ()
    waiting_since: Mapping[str, float] = field(default_factory=dict)
    """By name, since when a model has waited without any replica."""
    drain_s: float = _DRAIN_S
    """The typical seconds from the beginning of a hand-over until the place is taken."""
    nodes: NodeTimes = field(default_factory=NodeTimes)


@dataclass(frozen=True, slots=True)
class Grant:
    """The share of one model."""

    target: int
    stop: tuple[str, ...] = ()
    """The replicas to stop, if replicas are stopped."""
    why: str = ""
    """Who gives a place to whom and why; empty if the model's own decision stands."""
    otherwise: str = ""
    """When that will change."""
    gives_to: str = ""
    """The name of the model that gets a place of this model, at the decision that says so."""
    place: int = 0
    """The place in the line of models that wait for room; 0 if the model does not wait."""
    eta_s: float | None = None
    """For a model that waits: the expected seconds until its first replica is ready."""


def share(
    members: Sequence[Member],
    nodes: Sequence[Node],
    state: SharingState,
    now: float,
    coming: Sequence[ComingNode] = (),
) -> tuple[dict[str, Grant], SharingState]:
    """Return the grant of every model by engine deployment, and the new memory.

    If every model's own target fits, each grant is that target. `now` is in seconds, on any clock that
    `coming` uses, too.
    """
    state = replace(state, nodes=state.nodes.see(nodes, coming, now))
    return _Sharing(members, nodes, state, now).decide()


class _Sharing:
    """One decision. Places are handed out in order, so each step sees what earlier steps took."""

    def __init__(
        self, members: Sequence[Member], nodes: Sequence[Node], state: SharingState, now: float
    ) -> None:
        self._by_key = {member.key: member for member in members}
        self._members, self._nodes, self._now = members, nodes, now
        self._state = self._continue(state)
        self._begun: list[Handover] = []
        self._free, self._drains = self._unpromised()
        self._coming = self._state.nodes.free(now)
        self._taken = {name for handover in self._state.handovers for _, name in handover.givers}
        self._settled = dict.fromkeys(self._by_key, 0)
        self._places: dict[str, tuple[int, float | None]] = {}
        self._first: Member | None = None
        """The first in the line, while only its replica may be pending, besides those that have room."""
        self._for_node: set[str] = set()
        """The models that wait for a coming node."""
        self._line: list[tuple[float, int, Member]] = []
        """A heap of the turns that are planned: when each ends, from now."""

    def decide(self) -> tuple[dict[str, Grant], SharingState]:
        """Hand out what is free, then what others give, and return the grants."""
        for member in sorted(self._members, key=self._turn):
            self._claim(member)
        for member in self._members:
            missing = member.wanted - member.present - self._settled[member.key]
            while missing > 0 and self._take_free(member):
                missing -= 1
        state = replace(self._state, handovers=(*self._state.handovers, *self._begun))
        return {member.key: self._grant(member, state) for member in self._members}, state

    # The hand-overs and what is free.

    def _continue(self, state: SharingState) -> SharingState:
        """Return the memory with the hand-overs that are still under way, and who waits since when."""
        kept, drain_s = [], state.drain_s
        draining = {replica.name for member in self._members for replica in member.draining}
        for handover in state.handovers:
            taker, age_s = self._by_key.get(handover.taker), self._now - handover.since
            if taker is None or taker.wanted <= handover.had:
                continue
            seen = self._now if any(name in draining for _, name in handover.givers) else handover.seen
            if taker.present > handover.had:
                drain_s = (drain_s + age_s) / 2
            elif 0.0 <= self._now - seen < PLACED_WITHIN_S:
                kept.append(replace(handover, seen=seen))
        # A new controller has no memory, so it asks the requests. At other times a model that has just given
        # its place would come first, because its requests have waited for their turn.
        now, fresh = self._now, not state.waiting_since and not state.handovers
        since = {
            member.name: min(now, state.waiting_since.get(member.name, now - member.held_s * fresh))
            for member in self._members
            if not (member.replicas or member.has_sibling) and member.claimed > 0
        }
        return SharingState(tuple(kept), since, drain_s, state.nodes)

    def _unpromised(self) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, float]]]:
        """Return what is free on each node, and what drains there, without what hand-overs have promised."""
        free = {node.name: dict(node.free) for node in self._nodes}
        drains: dict[str, dict[str, float]] = {name: {} for name in free}
        giving = {name for handover in self._state.handovers for _, name in handover.givers}
        for member in self._members:
            for replica in (*member.draining, *(r for r in member.replicas if r.name in giving)):
                if replica.node in free:
                    add((free if replica.name in giving else drains)[replica.node], member.need)
        for handover in self._state.handovers:
            if handover.node in free:
                add(free[handover.node], self._by_key[handover.taker].need, -1.0)
        # While a taker has its place and has not said so, the place counts twice.
        left = {node: {name: max(0.0, n) for name, n in amounts.items()} for node, amounts in free.items()}
        return left, drains

    def _with_drains(self, node: str) -> dict[str, float]:
        """Have the drains of a node count as free, and return what is free there."""
        add(self._free[node], self._drains[node])
        self._drains[node] = {}
        return self._free[node]

    def _take_free(self, member: Member, *, draining: bool = False) -> bool:
        """Whether one more replica of `member` fits beside all that is promised; if so, take the room.

        With `draining`, replicas that end of themselves count as gone.

        Ray picks the node. So a replica that would also fit on a node of a hand-over has to wait.
        """
        open_on = {handover.node for handover in (*self._state.handovers, *self._begun)}
        for node in self._nodes:
            if node.name in open_on and not lacking(node.free, member.need):
                return False
        for name, free in self._free.items():
            room = dict(free)
            add(room, self._drains[name] if draining else {})
            if not lacking(room, member.need):
                add(self._with_drains(name) if draining else free, member.need, -1.0)
                self._settled[member.key] += 1
                return True
        return False

    # The line.

    def _turn(self, member: Member) -> tuple[float, float]:
        """Put models without a replica first, the longest wait before others; then the largest gain."""
        since = self._state.waiting_since.get(member.name)
        return (0.0, since) if since is not None and member.has_none else (1.0, -member.gain)

    def _claim(self, member: Member) -> None:
        """Find room for the replicas that the model's requests need."""
        missing = member.claimed - member.present
        under_way = [each for each in self._state.handovers if each.taker == member.key]
        if missing > 0 and under_way:
            self._settled[member.key] += 1
            missing -= 1
            # A drain that is late by some time is expected to take as long again: drains have long tails.
            left_s = abs(self._state.drain_s - (self._now - under_way[0].since))
            self._wait(member, left_s + member.start_s)
        while missing > 0 and self._take_free(member):
            missing -= 1
        room = any(not lacking(free, member.need) for free in self._free.values())
        if missing > 0 and not under_way and not room:  # with room, a hand-over on the same node comes first
            self._take_from_others(member, missing)

    def _take_from_others(self, member: Member, missing: int) -> None:
        """Begin a hand-over to `member`, have it wait for a drain, or give it a place in the line."""
        drain_s = self._state.drain_s
        # The drain of a busy replica takes longer than that of an idle one.
        plan = self._best(member, gives_idle) if member.has_none else None
        if plan is None and self._take_free(member, draining=True):
            while missing > 1 and self._take_free(member, draining=True):
                missing -= 1
            if not self._places:
                self._first = member
            self._wait(member, drain_s + member.start_s)
            return
        plan = plan or self._plan(member)
        if plan is None:
            self._queue(member)
            return
        idle = all(gives_idle(*victim) for victim in plan.victims)
        waited_s = self._now - self._state.waiting_since.get(member.name, self._now)
        more_s = 0.0 if idle or waited_s > member.turn + drain_s else _COST_STARTS * member.start_s
        if self._take_coming(member, drain_s + more_s):
            return
        free = self._with_drains(plan.node)
        for giver, replica in plan.victims:
            self._taken.add(replica.name)
            add(free, giver.need)
        add(free, member.need, -1.0)
        givers = tuple((giver.key, replica.name) for giver, replica in plan.victims)
        why, now = plan.reason(member), self._now
        self._begun.append(Handover(member.key, plan.node, givers, now, member.present, why, now))
        self._settled[member.key] += 1
        self._wait(member, drain_s + member.start_s)

    def _take_coming(self, member: Member, within_s: float) -> bool:
        """Whether a coming node has room within this time; if so, `member` waits for the node."""
        for left_s, free in self._coming:
            if left_s <= within_s and fits(free, member.need):
                add(free, member.need, -1.0)
                self._wait(member, left_s + member.start_s)
                self._for_node.add(member.key)
                return True
        return False

    def _queue(self, member: Member) -> None:
        """Have a model without a replica wait for the next turn or for a coming node, whichever is sooner."""
        if not member.has_none:
            self._take_coming(member, inf)
            return
        then = self._best(member, reports, soonest=True)
        large = any(not lacking(node.total, member.need) for node in self._nodes)
        nobody = not any(each.replicas for each in self._members)
        placing = [each.turn for each in self._members if each.gives and (each.placing or nobody)]
        if then is not None:
            turn_s = remaining_s(then.victims)
        elif large and self._line:
            turn_s = self._line[0][0]
        else:  # the replicas have not said on which node they are
            turn_s = min(placing, default=inf) if large else inf
        if self._take_coming(member, turn_s + self._state.drain_s):
            return
        if then is not None:
            self._taken.update(replica.name for _, replica in then.victims)  # nobody behind may take them
            free = self._with_drains(then.node)
            add(free, member.need, -1.0)
            for giver, _ in then.victims:
                add(free, giver.need)
            if not self._places and any(lacking(giver.need, member.need) for giver, _ in then.victims):
                self._first = member
                self._settled[member.key] += 1
        elif large and self._line:
            heapq.heappop(self._line)
        ready_s = turn_s + self._state.drain_s + member.start_s
        self._wait(member, ready_s if ready_s < inf else None)

    def _plan(self, member: Member) -> Plan | None:
        """Return the replicas in use that go for `member` now."""
        plan = self._best(member, gives_kept)
        if plan is not None and member.gain > 0 and member.gain >= GAIN * plan.loss:
            return plan
        if not member.has_none or member.name not in self._state.waiting_since:
            return None
        return self._best(member, gives_turn)

    def _best(self, member: Member, may_give: MayGive, *, soonest: bool = False) -> Plan | None:
        """Return the best plan, with drains as free room unless only idle replicas may go."""
        room = {name: dict(free) for name, free in self._free.items()}
        if may_give is not gives_idle:
            for name, drains in self._drains.items():
                add(room[name], drains)
        taken = frozenset(self._taken)
        return best_plan(member, self._members, self._nodes, room, taken, may_give, soonest=soonest)

    def _wait(self, member: Member, eta_s: float | None) -> None:
        """Give a model without a replica the next place in the line."""
        if not member.has_none:
            return
        self._places[member.key] = len(self._places) + 1, eta_s
        if eta_s is not None:
            heapq.heappush(self._line, (eta_s + member.turn, len(self._places), member))

    # The answer.

    def _grant(self, member: Member, state: SharingState) -> Grant:
        """Return the grant of one model. Without hand-overs, a replica without room is asked for anyway.

        The demand of a pending replica is what a node autoscaler sees. While a hand-over is under way, only
        its taker may be pending, because Ray would give the free place to any pending replica. The same holds
        for the first in the line while it waits for a drain, or for the room of several replicas.
        """
        place, eta_s = self._places.get(member.key, (0, None))
        gives = [each for each in state.handovers if any(key == member.key for key, _ in each.givers)]
        begun = next((each for each in self._begun if each in gives), None)
        stop = tuple(name for each in self._begun for key, name in each.givers if key == member.key)
        # A replica that was told to go before may still be listed, but the target in force is without it.
        before = any(each is not begun for each in gives)
        has = min(member.present, member.target) if before else member.present
        has += self._settled[member.key] - len(stop)
        takes = next((each for each in state.handovers if each.taker == member.key), None)
        first = self._by_key[state.handovers[0].taker] if state.handovers else self._first
        if member.wanted <= has or first is None:
            target, why, otherwise = member.wanted, "", ""
        else:
            target, why = has, f"{first.name} gets the next place."
            otherwise = f"The model's own target stands again when the replica of {first.name} starts."
        gives_to = ""
        if gives:
            why, gives_to = gives[-1].why, self._by_key[begun.taker].name if begun is not None else ""
            otherwise = f"{member.name} gets a place again when its requests wait: it then takes one, too."
        elif takes is not None:
            why = takes.why
            otherwise = f"Without that, {member.name} would wait until a node has room."
        elif place and not why:
            otherwise = f"{member.name} starts sooner if another model becomes idle, or a node is added."
            when = "no other model may give its place" if eta_s is None else f"ready in about {ceil(eta_s)} s"
            room = "a new node" if member.key in self._for_node else "room"
            why = f"{member.name} waits for {room}, at place {place} in the line: {when}."
        return Grant(target, stop, why, otherwise, gives_to, place, eta_s)
