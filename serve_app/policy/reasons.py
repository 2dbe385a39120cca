"""A decision in words: its reason, what would change it, what is out of reach, and the numbers behind it."""

import math
from collections.abc import Sequence

from serve_app.policy.capacity_model import MOST_REPLICAS
from serve_app.policy.explanation import Clamp, Explanation, Term, amount, are, counted
from serve_app.policy.inputs import Inputs
from serve_app.policy.limits import Limited
from serve_app.policy.snapshot import Snapshot
from serve_app.policy.terms import kept_below_rps, most_for_a_queue


def explain(limited: Limited) -> Explanation:
    """Return a decision in words and numbers: the last step of a decision, made of its target."""
    needs, target = limited.needs, limited.target
    inputs = needs.inputs
    binding, reason = main_reason(needs.strongest, limited.clamps, needs.wanted, target, inputs.idle_s)
    return Explanation(
        terms=(*needs.load, *needs.baseline),
        binding=binding,
        clamps=limited.clamps,
        reason=reason,
        counterfactual=counterfactual(inputs, needs.wanted, target, needs.scheduled),
        notes=(
            *pending_notes(inputs.snapshot),
            *feasibility_notes(inputs),
            *assumption_notes(inputs),
            *inputs.seen.notes,
        ),
        signals=explain_signals(inputs),
        ages_s=inputs.seen.ages_s,
    )


def main_reason(
    strongest: Term, clamps: Sequence[Clamp], wanted: int, target: int, idle_s: float | None
) -> tuple[str, str]:
    """Return the name of what set the target, and why: first of all that the model is idle, if it is."""
    idle = "" if idle_s is None else f"The model has been idle for {idle_s:.0f} s. "
    for names in (("mode", "signals", "delay", "batch_limit") if target != wanted else (), ("bounds",)):
        for clamp in clamps:
            if clamp.name in names:
                binding = clamp.effect.partition(" ")[0] if clamp.name == "bounds" else clamp.name
                return binding, f"{binding}: {idle}{clamp.effect} {strongest.why}"
    return strongest.name, f"{strongest.name}: {idle}{strongest.why}"


def counterfactual(inputs: Inputs, wanted: int, target: int, scheduled: int) -> str:
    """Return what would raise the target, and when it can fall; `scheduled` is a schedule's minimum."""
    rise = _rise(inputs, target)
    return f"{rise} The target {_fall(inputs, wanted, target, scheduled)}." if target else rise


def _rise(inputs: Inputs, target: int) -> str:
    if target >= inputs.knobs.max_replicas:
        return f"The target cannot rise above max_replicas = {inputs.knobs.max_replicas}."
    if target == 0:
        return "The target rises at the first request."
    load = "load or forecast exceeds" if inputs.knobs.forecast else "the load exceeds"
    above = f"when {load} {amount(inputs.sizing.most_rps(target))} requests/s"
    above += ". The rest of the capacity is headroom." if inputs.sizing.headroom else "."
    if most_for_a_queue(inputs) < MOST_REPLICAS:
        return f"The target rises {above} A queue asks for no more replicas while replicas start."
    waiting = math.floor(inputs.knobs.queue_target_per_replica * target) + 1
    return f"The target rises at {waiting:,} waiting requests, or {above}"


def _fall(inputs: Inputs, wanted: int, target: int, scheduled: int) -> str:
    knobs = inputs.knobs
    if target <= knobs.min_replicas:
        return f"cannot fall below min_replicas = {knobs.min_replicas}"
    if target <= scheduled:
        return f"cannot fall, because a schedule asks for {counted(scheduled, 'replica')}"
    if inputs.silent:
        return "cannot fall while most replicas do not report"
    if target == 1:
        left_s = max(0.0, knobs.downscale_to_zero_delay_s - (inputs.idle_s or 0.0))
        return f"falls to 0 replicas in {left_s:.0f} s if no request comes"
    if wanted >= target:
        stays = "load and forecast stay" if knobs.forecast else "the load stays"
        below = f"{amount(kept_below_rps(inputs, target - 1))} requests/s"
        return f"falls when {stays} below {below} for {amount(inputs.hold_s)} s"
    peak = inputs.peaks[0]
    delayed_s = peak.at + inputs.hold_s - inputs.now if peak.replicas >= target else 0.0
    return f"can fall in {max(0.0, delayed_s, inputs.unobserved_s):.0f} s"


def pending_notes(snapshot: Snapshot) -> list[str]:
    """Return what is pending, and why; for how long is in the status, which is newer than a decision."""
    capacity = snapshot.capacity
    if not capacity.pending:
        return []
    why = f" Reason: {capacity.reason}" if capacity.reason else ""
    return [f"capacity: {are(capacity.pending, 'replica')} pending.{why}"]


def feasibility_notes(inputs: Inputs) -> list[str]:
    """Return the targets that no number of replicas would meet, and what the fleet is sized for instead."""
    knobs, measured, alone = inputs.knobs, inputs.measured, inputs.alone
    notes = []
    prefill, target = measured.ttft_prefill, f"The target ttft_target_s is {amount(knobs.ttft_target_s)} s"
    if prefill.count > 0 and not measured.ttft_feasible:
        half = f"Half of the prompts take {amount(prefill.at(50))} s of prefill or more."
        notes.append(f"infeasible: {half} {target}. More replicas cannot shorten a prefill.")
    elif prefill.count > 0 and (prefill_s := prefill.at(knobs.ttft_percentile)) > knobs.ttft_target_s:
        at = f"P{knobs.ttft_percentile}"
        notes.append(f"infeasible at {at}: The {at} of prefill alone is {amount(prefill_s)} s. {target}.")
    elif not alone.ttft and measured.itl.count > 0:
        takes = f"A mean request on an empty replica gets its first token after {amount(alone.ttft_s)} s."
        instead = f"so the fleet is sized for {amount(alone.ttft_limit_s)} s"
        notes.append(f"infeasible: {takes} {target}, {instead}.")
    if measured.itl.count > 0 and alone.itl_limit_s > knobs.itl_target_s:
        hardly = "hardly feasible" if alone.itl else "infeasible"
        every = f"A single sequence on an empty replica gets a token every {amount(alone.itl_s)} s."
        target = f"The target itl_target_s is {amount(knobs.itl_target_s)} s"
        notes.append(f"{hardly}: {every} {target}, so the fleet is sized for {amount(alone.itl_limit_s)} s.")
    return notes


def assumption_notes(inputs: Inputs) -> list[str]:
    """Return a sentence for each thing that the decision takes from the knob because nothing was measured."""
    given = inputs.knobs.starting_values
    if given is None:
        return []
    notes = []
    if not inputs.steps_learned:
        notes.append("starting_values: No step is measured yet, so they give the capacity of a replica.")
    if given.cold_start_s is not None and not inputs.snapshot.start_measured:
        assumed_s = inputs.snapshot.assumed_start_s
        on = " on a cold node" if inputs.snapshot.cold_start_s is not None else ""
        notes.append(f"starting_values: No start{on} is measured yet, so {amount(assumed_s)} s are assumed.")
    return notes


def explain_signals(inputs: Inputs) -> dict[str, float]:
    """Return the numbers that the decision is based on, by the names that docs/operating.md explains."""
    snapshot, seen, arrivals = inputs.snapshot, inputs.seen, inputs.arrivals
    measured, sizing = inputs.measured, inputs.sizing
    signals = {
        "ready_replicas": snapshot.ready,
        "starting_replicas": snapshot.capacity.starting,
        "pending_replicas": snapshot.capacity.pending,
        "warm_node": snapshot.warm_node,
        "running_requests": seen.running_requests,
        "running_tokens": seen.running_tokens,
        "waiting_requests": seen.waiting_requests,
        "waiting_tokens": seen.waiting_tokens,
        "held_requests": seen.held_requests,
        "oldest_held_s": seen.oldest_held_s,
        "arrivals_30s_rps": arrivals.last_30s_rps,
        "arrivals_60s_rps": arrivals.last_60s_rps,
        "arrivals_felt_rps": arrivals.felt_rps,
        "prompt_tokens_mean": sizing.mix.prompt_tokens,
        "output_tokens_mean": sizing.mix.output_tokens,
        "cached_share": 1.0 - sizing.mix.computed_share,
        "replica_capacity_rps": sizing.rps(max(snapshot.target, 1)),
        "headroom": sizing.headroom,
        "itl_interference": inputs.interference,
        "step_base_s": sizing.step.base_s,
        "step_per_sequence_s": sizing.step.per_sequence_s,
        "step_per_kv_token_s": sizing.step.per_kv_token_s,
        "step_per_prefill_token_s": sizing.step.per_prefill_token_s,
        "steps_learned_from": inputs.steps_learned,
        "ttft_missed_ratio": measured.ttft_missed,
        "itl_missed_ratio": measured.itl_missed,
    }
    percentile = inputs.knobs.ttft_percentile
    parts = {"ttft_queue": measured.ttft_queue, "ttft_prefill": measured.ttft_prefill, "itl": measured.itl}
    for part, latency in parts.items():
        if latency.count > 0:
            signals[f"{part}_p{percentile}_s"] = latency.at(percentile)
    for name in ("cold_start_s", "warm_node_start_s", "cold_node_start_s"):
        start_s = getattr(snapshot, name)
        if start_s is not None and math.isfinite(start_s):
            signals[name] = start_s
    return signals
