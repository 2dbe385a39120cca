"""The decision about a model with variants: one need, in replicas of the first variant, and one mix. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from serve_app.policy.capacity_model import StepTime, capacity_rps, feasibility
from serve_app.policy.decide import Decision
from serve_app.policy.reasons import amount, counted
from serve_app.policy.reports import Snapshot, step_sample
from serve_app.policy.state import PolicyState
from serve_app.policy.variant_mix import Offer, VariantMix, choose, cost
from serve_app.policy.variant_state import VariantMixState, VariantState, Work
from serve_app.settings.knobs import Knobs
from serve_app.wire.served_models import ServedVariant

_LEAST_LOAD = 0.05
"""The work of a model without requests that keeps a replica, in replicas of the first variant."""
_TOLERANCE = 1.1
"""A variant in use counts as meeting the targets until it is slower by this factor, so that noise in its
measured speed moves no work."""
_SAME_REPORT_S = 0.05
"""Two ages of one report differ by less."""
_ROUNDING = 1e-6
_ENDS_SHARE = 0.5
"""The share of the permitted misses that ends of nodes may cause."""

Decide = Callable[[Snapshot, PolicyState], tuple[Decision, PolicyState]]


@dataclass(frozen=True, slots=True)
class VariantNow:
    """One variant at the moment of a decision."""

    served: ServedVariant
    snapshot: Snapshot
    """Without replicas among the ready ones that take no requests before the end of their nodes."""
    ending: int = 0
    """Ready replicas whose nodes are about to end."""
    placed: int = 0
    """Replicas that have a node, and keep it as far as is known."""
    left: tuple[str, ...] = ()
    """Replicas whose nodes have been taken away, or will be."""
    serves_s: float = 0.0
    """How long the newest of them take requests."""
    takes: bool = False
    """Whether a replica waits for the place that another model gives it, and not for a node."""

    @property
    def name(self) -> str:
        """The name of the variant."""
        return self.served.name


@dataclass(frozen=True, slots=True)
class VariantDecision:
    """One decision about a model with variants."""

    decision: Decision
    """With targets as numbers of replicas, whatever their variant."""
    snapshot: Snapshot
    """The replicas of all variants together, as an operator counts them."""
    targets: Mapping[str, int]
    """By variant."""


def decide_variants(
    variants: Sequence[VariantNow], knobs: Knobs, state: PolicyState, now: float, decide: Decide
) -> tuple[VariantDecision, PolicyState]:
    """Return the decision, and the new memory.

    Args:
        variants: The variants, the first one first.
        knobs: The knobs of the model.
        state: The memory about the model.
        now: Unix time in seconds.
        decide: The policy of a model with one kind of replica.
    """
    seen = {
        each.name: _observe(state.mix.variants.get(each.name, VariantState()), each, now) for each in variants
    }
    state = replace(state, mix=replace(state.mix, variants=seen))
    capacities, _ = _capacities(variants, knobs, state)
    units = _units(variants, capacities, state.mix)
    state = replace(state, mix=replace(state.mix, units=units))
    decision, state = decide(_combined(variants, capacities, units), state)
    capacities, meets = _capacities(variants, knobs, state)  # the decision has learned from the reports
    # In replicas of the first variant, so that a change of the measured capacity alone changes no number.
    unit_rps = capacities[variants[0].name]
    offers = [
        _offer(each, capacities[each.name] / unit_rps, meets[each.name], knobs, state, now)
        for each in variants
    ]
    window_s = max(knobs.downscale_delay_s or 0.0, 10.0, min(60.0, 4.0 * max(o.start_s for o in offers)))
    # The decision's target has waited for its own scale-down window already.
    recent = tuple(Work(work.at, min(work.rps, float(decision.target))) for work in state.mix.recent)
    known = replace(state.mix, recent=recent)
    mix, mixed = choose(offers, _work(decision), knobs.min_on_demand, window_s, known, now)
    wanted = mix
    if decision.wanted != decision.target:  # the mix without delays and mode `advise`
        undelayed = replace(decision, target=decision.wanted)
        wanted, _ = choose(offers, _work(undelayed), knobs.min_on_demand, 0.0, known, now)
    targets, advises = mix.targets, knobs.mode == "advise"
    if advises and decision.target == units:  # the bounds act in each mode
        targets = {each.name: each.snapshot.target for each in variants}
    state = replace(state, mix=replace(mixed, units=decision.target, asked=targets))
    shown = replace(
        decision,
        target=sum(targets.values()),
        wanted=sum(wanted.goal.values()),
        notes=(*decision.notes, *_notes(offers, wanted if advises else mix, unit_rps, state, now)),
        signals={
            **decision.signals,
            "work_rps": mix.work_rps * unit_rps,
            "usd_per_hour": sum(offer.usd_per_hour * targets[offer.name] for offer in offers),
            "dearest_usd_per_hour": mix.dearest_usd_per_hour,
        },
        variants={offer.name: _numbers(offer, targets, unit_rps, state, now) for offer in offers},
    )
    return VariantDecision(shown, _counted(variants), targets), state


def divide(
    units: float, speeds: Mapping[str, float], base: Mapping[str, int], *limits: Mapping[str, int]
) -> dict[str, int]:
    """Return the replicas that do the work of `units` replicas of the first variant, by variant.

    Args:
        units: The work.
        speeds: The work of one replica. Those named first are used first.
        base: Replicas that are used in any case.
        limits: The most replicas. Each limit is reached before the next one counts.
    """
    counts = {name: base.get(name, 0) for name in speeds}
    units -= sum(counts[name] * speed for name, speed in speeds.items())
    for most in limits:
        for name, speed in speeds.items():
            added = max(0, min(most[name] - counts[name], ceil(units / speed - _ROUNDING)))
            counts[name] += added
            units -= added * speed
    return counts


def _observe(memory: VariantState, each: VariantNow, now: float) -> VariantState:
    """Return the memory about a variant with its reports and nodes of this moment."""
    snapshot, left = each.snapshot, each.left if each.served.preemptible else ()
    if memory.identity != each.served.identity:
        fresh = VariantState(identity=each.served.identity)
        memory = replace(memory, identity=fresh.identity, fit=fresh.fit, kv_cache_tokens=0.0, reported_at={})
    samples, reported, cache = [], {}, memory.kv_cache_tokens
    for replica, reading in snapshot.engines.items():
        at = round(now - reading.age_s, 2)
        reported[replica] = at
        if not reading.fresh or abs(at - memory.reported_at.get(replica, 0.0)) <= _SAME_REPORT_S:
            continue
        cache = reading.signals.kv_cache_tokens or cache
        if (sample := step_sample(reading.signals)) is not None:
            samples.append(sample)
    fit = memory.fit.learn(samples)
    given = memory.given and snapshot.target > memory.placed  # else no replica waits for the place any more
    memory = replace(memory, fit=fit, kv_cache_tokens=cache, reported_at=reported, given=given)
    # Nodes are not short because another model's replica still drains.
    pending = 0 if each.takes else snapshot.pending
    memory = memory.learn_nodes(pending, snapshot.pending_s, each.placed, now, given=each.takes)
    return memory.learn_ends(left, snapshot.horizon_s, each.serves_s, now)


def _work(decision: Decision) -> float:
    """Return the needed work in replicas of the first variant: a part of a replica counts as a part.

    Only the demand is known in parts. If another term or a delay asks for more, whole replicas count.
    """
    units = decision.target
    if units == 1 or units - decision.load < 1.0:
        return min(max(decision.load, _LEAST_LOAD), float(units))
    return float(units)


def _capacities(
    variants: Sequence[VariantNow], knobs: Knobs, state: PolicyState
) -> tuple[dict[str, float], dict[str, bool]]:
    """Return the requests per second of one replica, and whether it meets the targets, by variant.

    A variant without measured steps has the assumed speed, relative to a measured one.
    """
    first, seen, mix = variants[0].name, state.mix.variants, state.sums.mix()
    own = {each.name: state.service if each.name == first else seen[each.name].fit for each in variants}
    # Variants of one kind have one speed. With a fit of their own each, noise would move work between them.
    fits = {
        each.name: max(
            (own[other.name] for other in variants if other.served.kind == each.served.kind),
            key=lambda fit: fit.steps,
        )
        for each in variants
    }
    source = max(variants, key=lambda each: (fits[each.name].steps > 0, each.name == first))
    known, pool = fits[source.name].step_time(), float(max(state.mix.units, 1))
    capacities, meets = {}, {}
    for each in variants:
        name, step = each.name, fits[each.name].step_time()
        if not fits[name].steps:
            step = known.scaled(each.served.assumed_speed / source.served.assumed_speed)
        cache = (state.kv_cache_tokens if name == first else seen[name].kv_cache_tokens) or 0.0
        capacities[name] = max(1e-6, capacity_rps(step, mix, knobs, cache, state.interference, pool))
        empty = feasibility(_tolerated(step, name, state), mix, knobs)
        meets[name] = empty.ttft and empty.itl
    return capacities, meets


def _tolerated(step: StepTime, name: str, state: PolicyState) -> StepTime:
    return step.scaled(_TOLERANCE) if state.mix.goal.get(name) else step


def _units(variants: Sequence[VariantNow], capacities: Mapping[str, float], mix: VariantMixState) -> int:
    """Return the target in force, in replicas of the first variant.

    It is the last decision's target, unless other models got places, or the targets are not of that decision:
    `variants` or the policy may have been replaced.
    """
    in_force = {each.name: each.snapshot.target for each in variants}
    work = sum(target * capacities[name] for name, target in in_force.items())
    units = max(min(sum(in_force.values()), 1), round(work / capacities[variants[0].name]))
    if [*in_force] != [*mix.asked] or any(target > mix.asked[name] for name, target in in_force.items()):
        return units
    return mix.units if in_force == mix.asked else min(mix.units, units)


def _combined(variants: Sequence[VariantNow], capacities: Mapping[str, float], units: int) -> Snapshot:
    """Return one snapshot in replicas of the first variant, with the target `units`.

    Reports of other variants say nothing about the speed and the KV cache of the first one.
    """
    first = variants[0]
    speeds = {each.name: capacities[each.name] / capacities[first.name] for each in variants}
    counts = _counted(variants)
    ready = units
    if any(each.snapshot.ready < each.snapshot.target for each in variants):
        covered = round(sum(each.snapshot.ready * speeds[each.name] for each in variants))
        ready = max(1, min(covered, units)) if counts.ready else 0
    elif not counts.ready:
        ready = 0
    engines = dict(first.snapshot.engines)
    for each in variants[1:]:
        for replica, reading in each.snapshot.engines.items():
            signals = replace(reading.signals, steps=0.0, kv_cache_tokens=0.0)
            engines[replica] = replace(reading, signals=signals)
    return replace(counts, target=units, ready=ready, running=counts.ready, engines=engines)


def _counted(variants: Sequence[VariantNow]) -> Snapshot:
    """Return one snapshot with the numbers of all replicas. Starts are those of the most used variant."""
    lead = max(variants, key=lambda each: (each.snapshot.target, -each.served.usd_per_hour))
    snapshots = [each.snapshot for each in variants]
    waiting = [each for each in snapshots if each.pending]
    longest = max(waiting, key=lambda each: each.pending_s, default=lead.snapshot)
    return replace(
        lead.snapshot,
        target=sum(each.target for each in snapshots),
        ready=sum(each.ready for each in snapshots),
        draining=sum(each.draining for each in snapshots),
        starting=sum(each.starting for each in snapshots),
        pending=sum(each.pending for each in snapshots),
        pending_s=longest.pending_s,
        pending_reason=longest.pending_reason,
    )


def _offer(
    each: VariantNow, capacity: float, meets: bool, knobs: Knobs, state: PolicyState, now: float
) -> Offer:
    served, snapshot, memory = each.served, each.snapshot, state.mix.variants[each.name]
    start_s = snapshot.horizon_s + (memory.usual_wait_s if memory.node_waits_s else 0.0)
    permitted = _ENDS_SHARE * (1.0 - knobs.slo_attainment)
    return Offer(
        served.name,
        served.usd_per_hour,
        capacity,
        served.min_replicas,
        served.max_replicas,
        served.preemptible,
        memory.at_once(permitted, start_s, now) if served.preemptible else 0,
        meets,
        start_s,
        snapshot.ready,
        each.ending,
        each.placed,
        memory.is_dry(now),
        memory.is_tried(now),
        memory.had if memory.is_dry(now) else 0,
    )


def _numbers(
    offer: Offer, targets: Mapping[str, int], unit_rps: float, state: PolicyState, now: float
) -> dict[str, float]:
    memory, target = state.mix.variants[offer.name], targets[offer.name]
    return {
        "target": target,
        "ready": offer.ready,
        "usd_per_hour": target * offer.usd_per_hour,
        "capacity_rps": offer.capacity_rps * unit_rps,
        "at_once": offer.at_once,
        "dry_s": max(0.0, (memory.try_at or now) - now),
        "meets_targets": offer.meets_targets,
    }


def _notes(
    offers: Sequence[Offer], mix: VariantMix, unit_rps: float, state: PolicyState, now: float
) -> list[str]:
    """Return the mix and its price, and why a variant gets no replica."""
    parts = [f"{mix.goal[offer.name]} {offer.name}" for offer in offers if mix.goal.get(offer.name)]
    notes = []
    if parts:
        price, dearest = amount(cost(offers, mix.goal)), amount(mix.dearest_usd_per_hour)
        work = amount(mix.work_rps * unit_rps)
        notes.append(
            f"mix: {', '.join(parts)}, the cheapest for {work} requests/s. It costs {price} USD/h. "
            f"The dearest variant alone would cost {dearest} USD/h."
        )
    for offer in offers:
        memory = state.mix.variants[offer.name]
        if memory.is_dry(now):
            then = f"The next try is in {amount((memory.try_at or now) - now)} s."
            if mix.goal.get(offer.name, 0) > offer.ceiling:
                then = "It is asked for, because no other variant can do the work."
            notes.append(f"mix: {offer.name} gets no node. {then}")
        if not offer.meets_targets and any(other.meets_targets for other in offers):
            notes.append(f"mix: {offer.name} is too slow for the targets, so it serves none of the work.")
        if offer.at_once and mix.goal.get(offer.name):
            spare = counted(offer.at_once, "replica")
            notes.append(f"mix: {spare} of {offer.name} may end at once, and count as spare.")
    return notes
