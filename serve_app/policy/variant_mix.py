"""Which variants serve a model: the cheapest replicas for the needed work. Pure: no Ray, no clock, no I/O.

The rule: the decision about a model gives the needed work, in requests per second. The best mix is the
cheapest one whose replicas do this work within the targets. A variant that is too slow for the targets does
none of it, and a dry variant gets no more replicas. Of a preemptible variant, as many replicas count for
nothing as may end at once. The present mix grows and shrinks with the work by the cheapest steps. A step to
dearer work than that of another variant, such as a small last replica, must save a fifth of the price,
because further growth undoes it. The mix is left for a better one only when the money that it has cost too
much since the last move exceeds the cost of the move: the price of the new replicas while they start, twice
for dear work. So a move is never dearer than staying would have been, and the mix cannot flap. Old replicas
stay until the new ones are ready.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import ceil, floor, inf

from serve_app.policy.variant_state import VariantMixState, Work

_ROUNDING = 1e-6
_LONGEST_STEP_S = 60.0
"""Money is counted for at most so long at one decision."""
_KEPT_STARTS = 4.0
"""A replica of a dear variant is worth its start if it serves for so many starts. Then at most a fifth of its
time was its start."""

Counts = Mapping[str, int]
"""Replicas by variant."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One variant at one moment."""

    name: str
    usd_per_hour: float
    capacity_rps: float
    """Requests per second of one replica within the targets, or its work in any other unit."""
    least: int = 0
    most: int = 10_000
    preemptible: bool = False
    at_once: int = 0
    """Replicas that may end at once, and therefore count for nothing."""
    meets_targets: bool = True
    start_s: float = 60.0
    ready: int = 0
    ending: int = 0
    """Of `ready`: replicas whose nodes are about to end."""
    placed: int = 0
    """Replicas that have a node, and keep it as far as is known."""
    dry: bool = False
    tried: bool = False
    """Whether its last replica got no node, and it is time to try again with one."""
    had: int = 0
    """If `dry`: the replicas that had nodes when it ran dry."""

    @property
    def ceiling(self) -> int:
        """The most replicas that may be asked for now."""
        if not self.dry and not self.tried:
            return self.most
        return min(self.most, max(self.placed, self.had, self.least))

    @property
    def usd_per_work(self) -> float:
        """The price of an hour in which one request per second is served."""
        return self.usd_per_hour / self.capacity_rps

    def serves_rps(self, replicas: int) -> float:
        """Return the requests per second of `replicas` that are certain."""
        return self.capacity_rps * max(0, replicas - self.at_once)


@dataclass(frozen=True, slots=True)
class VariantMix:
    """The replicas of each variant to ask for, and why."""

    targets: Counts
    goal: Counts
    """The targets once all replicas are ready."""
    work_rps: float
    usd_per_hour: float
    """The price of the replicas asked for."""
    dearest_usd_per_hour: float
    """The price of a fleet of the variant with the dearest replicas alone, for the same work."""
    moves: bool = False
    """Whether this decision leaves the mix for a better one."""


def choose(
    offers: Sequence[Offer],
    work_rps: float,
    on_demand: int,
    window_s: float,
    state: VariantMixState,
    now: float,
) -> tuple[VariantMix, VariantMixState]:
    """Return the mix for `work_rps` requests per second, and the new memory.

    Args:
        offers: The variants, the first one first.
        work_rps: The needed work; 0 for a model without any replica.
        on_demand: The least replicas that are not preemptible, while there is work.
        window_s: How long less work must be needed before replicas are removed.
        state: The memory.
        now: Unix time in seconds.
    """
    kept = [work for work in state.recent if now - window_s < work.at <= now and work.rps > work_rps]
    recent = (*kept, Work(now, work_rps)) if work_rps > 0 else ()
    needed = recent[0].rps if recent else 0.0
    if not needed:
        goal: Counts = {offer.name: offer.least for offer in offers}
        state = replace(state, goal=goal, recent=(), regret_usd=0.0, last_at=now)
        return _mix(offers, goal, goal, 0.0), state
    usable = usable_offers(offers)
    stay = follow(usable, needed, on_demand, state.goal)
    best = cheapest(usable, needed, on_demand)
    saves = cost(usable, stay) - cost(usable, best)
    regret_usd, moves = 0.0, False
    if saves > _ROUNDING and covers(usable, best, needed):
        elapsed_s = 0.0 if state.last_at is None else min(max(0.0, now - state.last_at), _LONGEST_STEP_S)
        regret_usd = state.regret_usd + saves * elapsed_s / 3600.0
        # Dear work is left again when the work grows.
        return_usd = cost_of_move(_dear(usable, stay), stay, best)
        moves = regret_usd >= cost_of_move(usable, stay, best) + return_usd
    goal = best if moves else stay
    if not covers(usable, goal, needed):  # nothing else is left, so dry variants are asked for nodes too
        goal = cheapest(_hopeful(usable), needed, on_demand, goal)
    mix = _mix(offers, _with_tries(usable, goal, needed, on_demand), goal, needed, moves=moves)
    return mix, replace(state, goal=goal, recent=recent, regret_usd=0.0 if moves else regret_usd, last_at=now)


def _hopeful(offers: Sequence[Offer]) -> list[Offer]:
    """Return the offers as if every variant had nodes."""
    return [replace(offer, dry=False, tried=False) for offer in offers]


def _with_tries(offers: Sequence[Offer], goal: Counts, work_rps: float, on_demand: int) -> Counts:
    """Return `goal` with one more replica of each variant that is tried again and would make the mix cheaper.

    Replicas that have got their nodes by such a try stay until the mix moves to them.
    """
    hoped = cheapest([replace(offer, tried=False) for offer in offers], work_rps, on_demand)
    if cost(offers, hoped) >= cost(offers, goal) - _ROUNDING:
        return goal
    most = {offer.name: min(hoped[offer.name], offer.placed + offer.tried) for offer in offers}
    return {name: max(goal.get(name, 0), most[name]) for name in most}


def usable_offers(offers: Sequence[Offer]) -> list[Offer]:
    """Return the offers without replicas of variants that are too slow, unless all are."""
    if not any(offer.meets_targets for offer in offers):
        return list(offers)
    return [offer if offer.meets_targets else replace(offer, most=offer.least) for offer in offers]


def cost(offers: Collection[Offer], counts: Counts) -> float:
    """Return the price of `counts` in USD per hour."""
    return sum(offer.usd_per_hour * counts.get(offer.name, 0) for offer in offers)


def covers(offers: Collection[Offer], counts: Counts, work_rps: float) -> bool:
    """Return whether `counts` do the work, without the replicas that may end at once."""
    served = sum(offer.serves_rps(counts.get(offer.name, 0)) for offer in offers)
    return served >= work_rps - _ROUNDING * max(1.0, work_rps)


def cost_of_move(offers: Collection[Offer], old: Counts, new: Counts) -> float:
    """Return the price of the replicas that run twice while the new ones start, in USD."""
    return sum(
        max(0, new.get(offer.name, 0) - max(old.get(offer.name, 0), offer.placed))
        * offer.usd_per_hour
        * offer.start_s
        / 3600.0
        for offer in offers
    )


def cheapest(offers: Sequence[Offer], work_rps: float, on_demand: int, base: Counts | None = None) -> Counts:
    """Return the cheapest counts, at least `base`, that do the work; if none do, those that do the most.

    Each set of variants is tried. Within a set, the variant with the cheapest work comes first, and the last
    replica is the cheapest one that is enough.
    """
    found = (_fill(offers, chosen, work_rps, on_demand, base or {}) for chosen in _subsets(offers))
    return min(found, key=lambda counts: _rank(offers, counts, work_rps, cost(offers, counts)))


def follow(offers: Sequence[Offer], work_rps: float, on_demand: int, goal: Counts) -> Counts:
    """Return `goal`, with the cheapest changes that do the work and no more.

    When the work grows further, a new replica of a dear variant soon has to go. Its start then was in vain,
    so its price counts with a share of the price of its start.
    """
    kept = {offer.name: min(max(goal.get(offer.name, 0), offer.least), offer.ceiling) for offer in offers}
    dear = _dear(offers, kept)

    def rank(counts: Counts) -> tuple[float, float, float, int]:
        new = cost(dear, {name: max(0, count - kept[name]) for name, count in counts.items()})
        return _rank(offers, counts, work_rps, cost(offers, counts) + new / _KEPT_STARTS)

    grown = (_fill(offers, chosen, work_rps, on_demand, kept) for chosen in _subsets(offers))
    return min((_shrink(offers, counts, work_rps, on_demand) for counts in grown), key=rank)


def _dear(offers: Sequence[Offer], counts: Counts) -> list[Offer]:
    """Return the offers whose work is dearer than that of another variant with room for more replicas."""
    least = min((each.usd_per_work for each in offers if each.ceiling > counts[each.name]), default=inf)
    return [each for each in offers if each.usd_per_work > least]


def _shrink(offers: Sequence[Offer], counts: Counts, work_rps: float, on_demand: int) -> Counts:
    """Return `counts` without the replicas that the work does not need, those with the dearest work first."""
    certain = [offer.name for offer in offers if not offer.preemptible]
    least_certain = min(on_demand, sum(counts[name] for name in certain))
    for offer in sorted(offers, key=lambda each: -each.usd_per_work):
        while counts[offer.name] > offer.least:
            fewer = {**counts, offer.name: counts[offer.name] - 1}
            if not covers(offers, fewer, work_rps) or sum(fewer[name] for name in certain) < least_certain:
                break
            counts = fewer
    return counts


def _rank(
    offers: Sequence[Offer], counts: Counts, work_rps: float, usd_per_hour: float
) -> tuple[float, float, float, int]:
    """Put counts that do the work first, then cheap ones, then few replicas."""
    served = sum(offer.serves_rps(counts[offer.name]) for offer in offers)
    missing = max(0.0, work_rps - served)
    missing = 0.0 if missing <= _ROUNDING * max(1.0, work_rps) else missing
    # Spare replicas do work too until their nodes end. Without enough others they are all that is left.
    spare = sum(offer.capacity_rps * counts[offer.name] for offer in offers)
    lacking = max(0.0, work_rps - spare) if missing else 0.0
    return missing, lacking, usd_per_hour, sum(counts.values())


def _subsets(offers: Sequence[Offer]) -> Iterator[frozenset[str]]:
    names = [offer.name for offer in offers if offer.ceiling > offer.least]
    for size in range(len(names) + 1):
        yield from map(frozenset, combinations(names, size))


def _fill(
    offers: Sequence[Offer], chosen: frozenset[str], work_rps: float, on_demand: int, base: Counts
) -> dict[str, int]:
    counts = {offer.name: max(offer.least, base.get(offer.name, 0)) for offer in offers}
    by_price = sorted(offers, key=lambda each: (each.usd_per_work, each.name))
    ranked = [offer for offer in by_price if offer.name in chosen]
    for offer in by_price:
        if not offer.preemptible:
            certain = sum(counts[each.name] for each in offers if not each.preemptible)
            counts[offer.name] += max(0, min(on_demand - certain, offer.ceiling - counts[offer.name]))
        elif offer.name in chosen and counts[offer.name] < offer.at_once:
            counts[offer.name] = min(offer.at_once, max(offer.ceiling, counts[offer.name]))
    rest = work_rps - sum(offer.serves_rps(counts[offer.name]) for offer in offers)
    for offer in ranked:
        if rest <= _ROUNDING * max(1.0, work_rps):
            break
        room = max(0, offer.ceiling - counts[offer.name])
        whole = min(room, floor(rest / offer.capacity_rps + _ROUNDING))
        counts[offer.name] += whole
        rest -= whole * offer.capacity_rps
        if rest <= _ROUNDING * max(1.0, work_rps):
            break
        enough = [
            each
            for each in ranked
            if each.capacity_rps >= rest - _ROUNDING and each.ceiling > counts[each.name]
        ]
        if enough and whole < room:
            last = min(enough, key=lambda each: (each.usd_per_hour, each.name))
            counts[last.name] += 1
            rest -= last.capacity_rps
    return counts


def _enough(offer: Offer, most: int, work_rps: float) -> int:
    """Return how many replicas do the work, at most `most`."""
    return min(most, max(0, ceil(work_rps / offer.capacity_rps - _ROUNDING)))


def _mix(
    offers: Sequence[Offer], wanted: Counts, goal: Counts, work_rps: float, *, moves: bool = False
) -> VariantMix:
    """Return the mix for `wanted`, which keeps other replicas until those of `wanted` are ready.

    Replicas whose nodes are about to end stay too, and stand for no other replica.
    """
    targets = {offer.name: wanted.get(offer.name, 0) for offer in offers}
    ranked = sorted(offers, key=lambda each: each.usd_per_work)
    lasting = {offer.name: max(0, offer.ready - offer.ending) for offer in offers}
    lacking = work_rps - sum(o.capacity_rps * min(lasting[o.name], targets[o.name]) for o in offers)
    for offer in ranked:
        kept = _enough(offer, max(0, max(offer.placed, lasting[offer.name]) - targets[offer.name]), lacking)
        targets[offer.name] += kept
        lacking -= kept * offer.capacity_rps
    lacking = work_rps - sum(o.capacity_rps * min(lasting[o.name], targets[o.name]) for o in offers)
    for offer in ranked:
        kept = _enough(offer, offer.ending, lacking)
        targets[offer.name] += kept
        lacking -= kept * offer.capacity_rps
    dearest = max(offers, key=lambda each: each.usd_per_hour)
    return VariantMix(
        targets,
        goal,
        work_rps,
        cost(offers, targets),
        ceil(work_rps / dearest.capacity_rps - _ROUNDING) * dearest.usd_per_hour,
        moves,
    )
