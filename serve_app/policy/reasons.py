"""A decision in words: what would change it, what is out of reach, and the numbers behind it."""

from __future__ import annotations

import math

from serve_app.policy.capacity_model import feasibility
from serve_app.policy.situation import Situation
from serve_app.policy.sizing import MOST_REPLICAS
from serve_app.policy.terms import queue_may_ask


def counterfactual(at: Situation, wanted: int, target: int, scheduled: int) -> str:
    """What would send the target up, and when it can next go down; `scheduled` is a schedule's minimum."""
    least = at.knobs.min_replicas
    if target and target <= max(scheduled, least):
        which = "min_replicas" if target <= least else "a schedule's min_replicas"
        return f"{_up(at, target)}; not down: {which} = {target}"
    return f"{_up(at, target)}; {_down(at, wanted, target)}"


def _up(at: Situation, target: int) -> str:
    if target >= at.knobs.max_replicas:
        return f"not up: max_replicas = {at.knobs.max_replicas}"
    if target == 0:
        return "up at the first request"
    above = f"above {_demand(at, target)}"
    if queue_may_ask(at) < MOST_REPLICAS:
        return f"up {above}; a queue asks for no more while replicas start"
    waiting = math.floor(at.knobs.queue_target_per_replica * target) + 1
    return f"up at {waiting} waiting or {above}"


def _demand(at: Situation, replicas: int) -> str:
    """The most that so many carry; the forecast asks by what is to come as well."""
    forecast = ", arriving or forecast" if at.knobs.forecast else ""
    return f"{at.sizing.most_rps(replicas):.3g} requests/s{forecast}"


def _down(at: Situation, wanted: int, target: int) -> str:
    if not target:
        return "at zero"
    if at.seen.unknown_engines or not at.seen.ingress_known:
        return "not down while replicas are silent"
    if target == 1:
        delay_s = at.knobs.downscale_to_zero_delay_s
        if at.state.idle_since is None:
            return f"to zero after {delay_s:g} s without a request"
        return f"to zero in {max(0.0, delay_s - at.idle_s):.0f} s without a request"
    if wanted >= target:
        return f"down after {at.knobs.downscale_delay_s:g} s below {_demand(at, target - 1)}"
    peak_at, most = at.state.peaks[0]
    delayed_s = peak_at + at.knobs.downscale_delay_s - at.now if most >= target else 0.0
    return f"can next go down in {max(0.0, delayed_s, at.first_down_s - at.watched_s):.0f} s"


def feasibility_notes(at: Situation) -> list[str]:
    """Targets no number of replicas would meet. They are reported, and not chased."""
    knobs, measured, sizing = at.knobs, at.measured, at.sizing
    notes = []
    alone = feasibility(sizing.step, sizing.mix, knobs)
    prefill = measured.ttft_prefill
    if prefill.count > 0 and not measured.ttft_feasible:
        notes.append(
            f"infeasible: half of the prompts take {prefill.at(50):.3g} s of prefill or more, "
            f"and ttft_target_s = {knobs.ttft_target_s:g}; replicas cannot change that"
        )
    elif prefill.count > 0 and prefill.at(knobs.ttft_percentile) > knobs.ttft_target_s:
        notes.append(
            f"infeasible at P{knobs.ttft_percentile}: prefill alone takes "
            f"{prefill.at(knobs.ttft_percentile):.3g} s, and ttft_target_s = {knobs.ttft_target_s:g}"
        )
    elif not alone.ttft and sizing.correction and measured.itl.count > 0:
        notes.append(
            f"infeasible: a mean request takes {alone.ttft_s:.3g} s to its first token on an empty replica, "
            f"and ttft_target_s = {knobs.ttft_target_s:g}"
        )
    if measured.itl.count > 0 and not measured.itl_feasible:
        notes.append(
            f"infeasible: a single sequence gets a token every {alone.itl_s:.3g} s, "
            f"and itl_target_s = {knobs.itl_target_s:g}"
        )
    return notes


def explain_signals(at: Situation) -> dict[str, float]:
    """The numbers the decision rests on, by the names the documentation gives them."""
    snapshot, seen, measured, sizing, state = at.snapshot, at.seen, at.measured, at.sizing, at.state
    short, long = state.demand.recent(at.now)
    signals = {
        "ready_replicas": snapshot.ready,
        "starting_replicas": snapshot.capacity.starting,
        "pending_replicas": snapshot.capacity.pending,
        "running_requests": seen.running_requests,
        "running_tokens": seen.running_tokens,
        "waiting_requests": seen.waiting_requests,
        "waiting_tokens": seen.waiting_tokens,
        "held_requests": seen.held_requests,
        "oldest_held_s": seen.oldest_held_s,
        "arrivals_30s_rps": short.requests,
        "arrivals_60s_rps": long.requests,
        "arrivals_felt_rps": at.felt_rps,
        "prompt_tokens_mean": sizing.mix.prompt_tokens,
        "output_tokens_mean": sizing.mix.output_tokens,
        "replica_capacity_rps": sizing.rps(max(snapshot.target, 1)),
        "capacity_correction": sizing.correction,
        "itl_interference": state.interference,
        "step_base_s": sizing.step.base_s,
        "step_per_sequence_s": sizing.step.per_sequence_s,
        "step_per_kv_token_s": sizing.step.per_kv_token_s,
        "step_per_prefill_token_s": sizing.step.per_prefill_token_s,
        "steps_learned_from": state.service.steps,
        "ttft_missed_ratio": measured.ttft_missed,
        "itl_missed_ratio": measured.itl_missed,
    }
    for name, latency in (
        ("ttft_queue", measured.ttft_queue),
        ("ttft_prefill", measured.ttft_prefill),
        ("itl", measured.itl),
    ):
        if latency.count > 0:
            signals[f"{name}_p{at.knobs.ttft_percentile}_s"] = latency.at(at.knobs.ttft_percentile)
    if snapshot.cold_start_s is not None and math.isfinite(snapshot.cold_start_s):
        signals["cold_start_s"] = snapshot.cold_start_s
    return signals
