"""A model's decision, and its parts: for a model with variants, one for each engine deployment.

Where models share places (`shared_fleet`), each part asks for places and gives them.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from serve_app.policy.decide import Clamp, Decision
from serve_app.policy.fleet_members import Member
from serve_app.policy.fleet_share import Grant
from serve_app.policy.reports import Snapshot
from serve_app.policy.variant_decision import VariantNow, divide
from serve_app.wire.served_models import ServedModel

_LOAD = ("waiting_requests", "held_requests", "running_requests", "arrivals_30s_rps", "arrivals_60s_rps")
"""The signals of a model that its variants divide."""


@dataclass(frozen=True, slots=True)
class Part:
    """One variant of a model."""

    ctx: Any
    variant: VariantNow


@dataclass(frozen=True, slots=True)
class Decided:
    """One model, with what its own policy decided."""

    model: ServedModel
    ctx: Any
    snapshot: Snapshot
    decision: Decision
    grant: Grant | None = None
    """None while the model's own decision stands without a look at others."""
    targets: Mapping[str, int] = field(default_factory=dict)
    """For a model with variants, the targets by engine deployment."""
    starts: str = ""
    """The engine deployment whose starts tell how long the next one takes, if it is not the model's."""
    parts: Mapping[str, Part] = field(default_factory=dict)
    """The variants by engine deployment, the first one first; empty for a model without variants."""


def split(each: Decided, engines: Mapping[str, ServedModel], takers: Collection[str]) -> dict[str, Decided]:
    """Return the decision by engine deployment: that of a model with variants as one for each."""
    if not each.parts:
        return {each.model.deployment: each}
    decision = each.decision
    rps = {name: decision.variants[part.variant.name]["capacity_rps"] for name, part in each.parts.items()}
    claims, minima = _claims(each, rps, takers)
    # Without a claim, the replicas that have places served the last arrivals.
    counts = claims if any(claims.values()) else {name: each.parts[name].variant.placed for name in claims}
    total = sum(counts[name] * rps[name] for name in counts) or 1.0
    found = {}
    for name, claim in claims.items():
        snapshot, of_load = each.parts[name].variant.snapshot, counts[name] * rps[name] / total
        start_s = snapshot.cold_start_s or snapshot.assumed_start_s
        load = {signal: decision.signals.get(signal, 0.0) * of_load for signal in _LOAD}
        part = replace(
            decision,
            target=each.targets[name],
            terms=(),
            claim=replace(decision.claim, replicas=claim, start_s=start_s),
            signals={**decision.signals, **load, "replica_capacity_rps": rps[name]},
        )
        knobs = each.model.knobs.model_copy(update={"min_replicas": minima[name]})
        found[name] = Decided(replace(engines[name], knobs=knobs), each.parts[name].ctx, snapshot, part)
    return found


def _claims(
    each: Decided, rps: Mapping[str, float], takers: Collection[str]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the claims and the minima by engine deployment, the cheapest work first.

    Ready replicas do the claimed work before others, then those that have a place or get one; then the
    cheapest ones do.
    """
    decision, knobs = each.decision, each.model.knobs
    now = {name: part.variant for name, part in each.parts.items()}
    by_price = sorted(now, key=lambda name: now[name].served.usd_per_hour / rps[name])
    useful = [name for name in by_price if decision.variants[now[name].name]["meets_targets"]] or by_price
    speeds = {name: rps[name] / next(iter(rps.values())) for name in useful}
    # Replicas whose nodes end leave the work to others, which may need places.
    targets = {name: max(0, target - now[name].ending) for name, target in each.targets.items()}
    ready = {name: min(now[name].snapshot.ready - now[name].ending, targets[name]) for name in now}
    placed = {name: min(now[name].placed + (name in takers), target) for name, target in targets.items()}
    certain = {name: 1.0 for name in by_price if not now[name].served.preemptible}
    on_demand = divide(knobs.min_on_demand, certain, {}, ready, placed, targets)
    scheduled = [term.replicas for term in decision.terms if term.name == "schedule"]
    claim, least = (
        divide(units, speeds, on_demand if units else {}, ready, placed, targets)
        for units in (decision.claim.replicas, max([knobs.min_replicas, *scheduled]))
    )
    # The last replicas of an idle model may go, because the model then has none at all.
    serves = any(claim.values()) or any(least.values()) or any(placed[n] for n in now if n not in certain)
    kept = {name: min(count, placed[name]) for name, count in on_demand.items() if serves}
    minima = {name: max(now[name].served.min_replicas, least.get(name, 0), kept.get(name, 0)) for name in now}
    return {name: claim.get(name, 0) for name in by_price}, minima


def as_siblings(members: list[Member], takers: Collection[str]) -> list[Member]:
    """Return the members of one model, of which one at most is without any replica of the model."""
    first = max(members, key=lambda each: (each.claimed > 0, each.present > 0 or each.key in takers))
    return [
        replace(
            each,
            has_sibling=each is not first or any(other.present for other in members if other is not each),
        )
        for each in members
    ]


def merge(each: Decided, grants: Mapping[str, Grant]) -> Decided:
    """Return the decision with what was granted to the model, or to its variants together."""
    if not each.parts:
        grant = grants[each.model.deployment]
        return replace(each, grant=grant, decision=_granted(each, grant))
    found = {name: grants[name] for name in each.parts}
    told = max(found.values(), key=lambda grant: (bool(grant.gives_to), bool(grant.why)))
    line = min((grant for grant in found.values() if grant.place), key=lambda g: g.place, default=told)
    targets = {name: grant.target for name, grant in found.items()}
    total = replace(told, target=sum(targets.values()), place=line.place, eta_s=line.eta_s)
    decision = _granted(each, total)
    if targets == each.targets or each.model.knobs.mode == "advise":
        return replace(each, grant=total, decision=decision)
    numbers, usd_per_hour = dict(decision.variants), 0.0
    for name, part in each.parts.items():
        served, usd = part.variant.served, targets[name] * part.variant.served.usd_per_hour
        numbers[served.name] = {**numbers[served.name], "target": targets[name], "usd_per_hour": usd}
        usd_per_hour += usd
    signals = {**decision.signals, "usd_per_hour": usd_per_hour}
    decision = replace(decision, variants=numbers, signals=signals)
    return replace(each, grant=total, decision=decision, targets=targets)


def _granted(each: Decided, grant: Grant) -> Decision:
    """Return the model's decision with the granted target and the reason for it."""
    decision = replace(each.decision, gives_to=grant.gives_to)
    if not grant.why or each.model.knobs.mode == "advise":
        return decision
    if grant.target == decision.target:
        return replace(decision, notes=(*decision.notes, f"share: {grant.why} {grant.otherwise}"))
    clamp = Clamp("share", f"{grant.why} So the target is {grant.target}, not {decision.target}.")
    return replace(
        decision,
        target=grant.target,
        binding="share",
        reason=f"share: {clamp.effect} {decision.reason.partition(': ')[2]}",
        counterfactual=grant.otherwise,
        clamps=(*decision.clamps, clamp),
    )
