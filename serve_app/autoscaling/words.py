"""A decision in words: what would change it, what is out of reach, and the numbers behind it."""

from __future__ import annotations

import math

from serve_app.autoscaling.feedback import Measured
from serve_app.autoscaling.knobs import Knobs
from serve_app.autoscaling.observe import Observation
from serve_app.autoscaling.service import feasibility
from serve_app.autoscaling.signals import Snapshot
from serve_app.autoscaling.state import PolicyState
from serve_app.autoscaling.terms import Sizing


def counterfactual(
    snapshot: Snapshot,
    knobs: Knobs,
    state: PolicyState,
    sizing: Sizing,
    seen: Observation,
    wanted: int,
    target: int,
    scheduled: int,
    idle_s: float,
    now: float,
) -> str:
    """What would send the target up, and when it can next go down; `scheduled` is a schedule's minimum."""
    if target and target <= max(scheduled, knobs.min_replicas):
        which = "min_replicas" if target <= knobs.min_replicas else "a schedule's min_replicas"
        return f"{_up(knobs, sizing, target)}; not down: {which} = {target}"
    down = _down(snapshot, knobs, state, seen, sizing, wanted, target, idle_s, now)
    return f"{_up(knobs, sizing, target)}; {down}"


def _up(knobs: Knobs, sizing: Sizing, target: int) -> str:
    if target >= knobs.max_replicas:
        return f"not up: max_replicas = {knobs.max_replicas}"
    if target == 0:
        return "up at the first request"
    waiting = math.floor(knobs.queue_target_per_replica * target) + 1
    return f"up at {waiting} waiting or above {sizing.most_rps(target):.3g} requests/s"


def _down(
    snapshot: Snapshot,
    knobs: Knobs,
    state: PolicyState,
    seen: Observation,
    sizing: Sizing,
    wanted: int,
    target: int,
    idle_s: float,
    now: float,
) -> str:
    if not target:
        return "at zero"
    if seen.unknown_engines or not seen.ingress_known:
        return "not down while replicas are silent"
    if target == 1:
        if state.idle_since is None:
            return f"to zero after {knobs.downscale_to_zero_delay_s:g} s without a request"
        return f"to zero in {max(0.0, knobs.downscale_to_zero_delay_s - idle_s):.0f} s without a request"
    if wanted >= target:
        below = sizing.most_rps(target - 1)
        return f"down after {knobs.downscale_delay_s:g} s below {below:.3g} requests/s"
    at, most = state.peaks[0]
    since = state.since if state.since is not None else now
    until = max(since, at if most >= target else since) + knobs.downscale_delay_s
    return f"can next go down in {max(0.0, until - now):.0f} s"


def feasibility_notes(knobs: Knobs, measured: Measured, sizing: Sizing) -> list[str]:
    """Targets no number of replicas would meet. They are reported, and not chased."""
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


def explain_signals(
    snapshot: Snapshot,
    seen: Observation,
    measured: Measured,
    sizing: Sizing,
    state: PolicyState,
    knobs: Knobs,
    now: float,
) -> dict[str, float]:
    """The numbers the decision rests on, by the names the documentation gives them."""
    short, long = state.demand.recent(now)
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
        "prompt_tokens_mean": sizing.mix.prompt_tokens,
        "output_tokens_mean": sizing.mix.output_tokens,
        "replica_capacity_rps": sizing.rps(max(snapshot.target, 1)),
        "capacity_correction": sizing.correction,
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
            signals[f"{name}_p{knobs.ttft_percentile}_s"] = latency.at(knobs.ttft_percentile)
    if snapshot.cold_start_s is not None and math.isfinite(snapshot.cold_start_s):
        signals["cold_start_s"] = snapshot.cold_start_s
    return signals
