"""The sentences of a decision: why each term needs its replicas, and when the target may change."""

import math

from serve_app.policy.capacity_model import MOST_REPLICAS, round_up
from serve_app.policy.inputs import Inputs
from serve_app.policy.state import Need


def counted(number: float, noun: str) -> str:
    """Return `number` with its noun: "no replica", "1 replica", "3,000 replicas"."""
    whole = f"{number:,.0f}"
    return {"0": f"no {noun}", "1": f"1 {noun}"}.get(whole, f"{whole} {noun}s")


def are(number: float, noun: str) -> str:
    """Return `number` with its noun and verb: "no replica is", "1 replica is", "3 replicas are"."""
    words = counted(number, noun)
    return f"{words} {'are' if words.endswith('s') else 'is'}"


def amount(number: float, digits: int = 3) -> str:
    """Return `number` with `digits` significant digits, and all digits before the point: "0.62", "24,300"."""
    rounded = round(number) if abs(number) >= 10**digits else float(f"{number:.{digits}g}")
    return f"{rounded:,.15g}"


def _agreeing(total: float, each: float) -> tuple[str, str]:
    """Return both numbers with enough digits that a reader who divides them gets the same replicas."""
    for digits in range(3, 16):
        shown, one = amount(total, digits), amount(each, digits)
        by_reader = float(shown.replace(",", "")) / float(one.replace(",", ""))
        if round_up(by_reader) == round_up(total / each):
            break
    return shown, one


# The terms.


def demand(inputs: Inputs, rps: float, replicas: int) -> str:
    """Return why `replicas` are needed for `rps` requests per second."""
    arrivals, sizing = inputs.arrivals, inputs.sizing
    if not rps:
        return "Load now: 0 requests/s, so no replica is needed."
    one_rps = max(sizing.rps(replicas), 1e-9)
    load, one = _agreeing(rps, one_rps)
    loaded = max(1, round_up(rps / one_rps))
    now = load if rps == arrivals.rps else amount(arrivals.rps)
    over = f"Load over the last {amount(arrivals.over_s)} s" if arrivals.rps else "Load now"
    source = " (from starting_values)" if inputs.knobs.starting_values and not inputs.steps_learned else ""
    why = [
        *_waking(inputs),
        f"{over}: {now} requests/s.",
        *(_allowed_rise(inputs, rps, load) if rps > arrivals.rps else ()),
    ]
    why.append(f"One replica serves {one} requests/s{source}, so {are(loaded, 'replica')} needed.")
    if replicas > loaded:
        spare = counted(replicas - loaded, "replica")
        why.append(f"{'Headroom' if sizing.headroom else 'The wait for a free replica'} adds {spare}.")
    return " ".join(why)


def _waking(inputs: Inputs) -> list[str]:
    """Return which requests wake a model at zero, as last reported. Their clients may have left since."""
    held = inputs.seen.held_requests
    return [] if inputs.snapshot.target or not held else [f"{are(held, 'request')} waiting at zero replicas."]


def _allowed_rise(inputs: Inputs, rps: float, load: str) -> list[str]:
    """Return why the fleet is sized for `rps`, shown as `load`, and not for the present arrivals."""
    forecast, weighted_rps = inputs.forecast, inputs.arrivals.weighted_rps
    weighted = load if rps == weighted_rps else amount(weighted_rps)
    clumps = f"Requests come in clumps, so the load counts as {weighted} requests/s."
    why = [clumps] if weighted_rps > inputs.arrivals.rps else []
    if forecast is None or rps == weighted_rps:
        return why
    start_s = amount(inputs.snapshot.horizon_s)
    share = f"{100 * forecast.quantile:.0f} % of past requests"
    if weighted_rps + forecast.rise > forecast.most:
        past = f"For {share}, the load was no higher."
    else:
        past = f"For {share}{' at a similar load' if forecast.alike else ''}, the load rose no more."
    why += [f"Allowed for while a replica starts ({start_s} s): a rise to {load} requests/s.", past]
    if forecast.unsure_rps > 0.05 * rps:
        known, more = amount(forecast.known_minutes, 2), amount(forecast.unsure_rps, 2)
        why.append(f"Only {known} minutes of traffic are known, so the rise includes {more} requests/s more.")
    return why


def queue_length(requests: float, allowed: float, needed: int, replicas: int) -> str:
    """Return why a queue of `requests` needs replicas, and the limit on them if there is one."""
    shown, limit = _agreeing(requests, allowed)
    waiting = f"{shown} request{' is' if shown == '1' else 's are'} waiting."
    return f"{waiting} One replica may have a queue of {limit} requests{_queue_needs(needed, replicas)}"


def queue_work(work_s: float, budget_s: float, needed: int, replicas: int) -> str:
    """Return why a queue with `work_s` seconds of prefill needs replicas; see `queue_length`."""
    work, limit = _agreeing(work_s, budget_s)
    waiting = f"The waiting requests need {work} s of prefill."
    return f"{waiting} One replica may have a queue of {limit} s{_queue_needs(needed, replicas)}"


def _queue_needs(needed: int, replicas: int) -> str:
    most = f" While replicas start, the queue asks for {counted(replicas, 'replica')} at most."
    return f", so {are(needed, 'replica')} needed.{most if replicas < needed else ''}"


def kv_cache(tokens: float, room: float, replicas: int) -> str:
    """Return why `tokens` need `replicas` whose KV caches have `room` each."""
    shown, one = _agreeing(tokens, room)
    why = f"Running and waiting requests need KV cache for {shown} tokens."
    return f"{why} One replica has room for {one} tokens, so {are(replicas, 'replica')} needed."


def at_zero(inputs: Inputs) -> str:
    """Return the reason of a model at zero replicas without a request that starts one."""
    who = "only background requests are" if inputs.seen.background_requests else "no request is"
    return f"The model is at zero replicas, and {who} waiting."


def awake(delay_s: float, kept: bool) -> str:
    """Return how long an idle model keeps its last replica."""
    over = "" if kept else ", which are over"
    return f"An idle model keeps 1 replica for {amount(delay_s)} s{over}."


def schedule(lead_s: float, replicas: int) -> str:
    """Return the minimum that schedules ask for."""
    opening = f"Schedules that are open now or within {amount(lead_s)} s"
    return f"{opening} ask for {counted(replicas, 'replica')}."


def past_load(idle_s: float) -> str:
    """Return why the load of an idle model needs nothing."""
    return f"The model has been idle for {idle_s:.0f} s, so past load no longer counts."


def idle(inputs: Inputs) -> str:
    """Return that a model is idle, with a space after the sentence; nothing in the first second.

    Between two requests, every model is idle for a moment.
    """
    if inputs.idle_s is None or inputs.idle_s < 1:
        return ""
    if not inputs.seen.background_requests:
        return f"The model has been idle for {inputs.idle_s:.0f} s. "
    return f"For {inputs.idle_s:.0f} s the model has had no work except background requests. "


# The clamps.


def bounds(bound: str, wanted: int, needed: int) -> str:
    """Return how a bound keeps the target from the need."""
    asks = "asks for" if wanted > needed else "allows"
    return f"{bound} {asks} {counted(wanted, 'replica')}, but {are(needed, 'replica')} needed."


def advise(current: int, target: int) -> str:
    """Return the effect of mode `advise`."""
    stays = f"In mode advise the target stays at {counted(current, 'replica')}."
    return f"{stays} In mode act it would be {counted(target, 'replica')}."


def burst(longest_s: float) -> str:
    """Return why a cold model does not start yet."""
    waits = f"The policy waits up to {longest_s:g} s to see the size of the burst."
    return f"A burst is still arriving. {waits}"


def silent(*, engines: bool) -> str:
    """Return why no replica is removed while too few replicas report."""
    who = "Most engine" if engines else "Ingress"
    return f"{who} replicas do not report, so no replica is removed."


def unobserved(observed_s: float, left_s: float) -> str:
    """Return why no replica is removed soon after the policy's start."""
    observed = f"The policy has observed the load for {observed_s:.0f} s only."
    return f"{observed} Replicas can be removed in {left_s:.0f} s."


def scale_down_window(largest: Need, now: float, window_s: float) -> str:
    """Return why a recent need keeps replicas."""
    ago_s = now - largest.at
    need = f"The need was {counted(largest.replicas, 'replica')} {ago_s:.0f} s ago."
    left = f"replicas can be removed in {max(0.0, window_s - ago_s):.0f} s"
    return f"{need} The scale-down window is {amount(window_s)} s, so {left}."


def batch_limit(fewer: int, target: int) -> str:
    """Return why the running batch keeps replicas."""
    cannot = f"{counted(fewer, 'replica')} cannot run the present batch within the targets."
    return f"{cannot} {counted(target, 'replica')} can."


# When the target changes.


def counterfactual(inputs: Inputs, wanted: int, target: int, scheduled: int, largest: Need) -> str:
    """Return what would raise the target, and when it can fall.

    `scheduled` is a schedule's minimum, `largest` the largest need within the scale-down window.
    """
    rise = _rise(inputs, target)
    return f"{rise} The target {_fall(inputs, wanted, target, scheduled, largest)}." if target else rise


def _rise(inputs: Inputs, target: int) -> str:
    if target >= inputs.knobs.max_replicas:
        return f"The target cannot rise above max_replicas = {inputs.knobs.max_replicas}."
    if target == 0:
        other = " of another lane than background" if inputs.seen.background_requests else ""
        return f"The target rises at the first request{other}."
    load = "load or forecast exceeds" if inputs.knobs.forecast else "the load exceeds"
    above = f"when {load} {amount(inputs.sizing.most_rps(target))} requests/s"
    above += ". Headroom keeps the rest of the capacity free." if inputs.sizing.headroom else "."
    if inputs.most_for_queue < MOST_REPLICAS:
        return f"The target rises {above} A queue asks for no more replicas while replicas start."
    waiting = math.floor(inputs.knobs.queue_target_per_replica * target) + 1
    return f"The target rises at {waiting:,} waiting requests, or {above}"


def _fall(inputs: Inputs, wanted: int, target: int, scheduled: int, largest: Need) -> str:
    knobs = inputs.knobs
    if target <= knobs.min_replicas:
        return f"cannot fall below min_replicas = {knobs.min_replicas}"
    if target <= scheduled:
        return f"cannot fall, because a schedule asks for {counted(scheduled, 'replica')}"
    if inputs.silent:
        return "cannot fall while most replicas do not report"
    if target == 1:
        if wanted and inputs.idle_s is not None and inputs.background_for_s is not None:
            if inputs.background_has_replica:
                return "falls to 0 replicas when no background request waits or runs"
            left_s = max(knobs.downscale_to_zero_delay_s, knobs.background_keep_s) - inputs.idle_s
            return f"falls to 0 replicas in {max(0.0, left_s):.0f} s if only background requests come"
        left_s = max(0.0, knobs.downscale_to_zero_delay_s - (inputs.idle_s or 0.0))
        return f"falls to 0 replicas in {left_s:.0f} s if no request comes"
    window_s = inputs.scale_down_window_s
    if wanted >= target:
        stays = "load and forecast stay" if knobs.forecast else "the load stays"
        below = f"{amount(inputs.cautious_rps(target - 1))} requests/s"
        return f"falls when {stays} below {below} for {amount(window_s)} s"
    delayed_s = largest.at + window_s - inputs.now if largest.replicas >= target else 0.0
    return f"can fall in {max(0.0, delayed_s, inputs.unobserved_s):.0f} s"


# The notes.


def notes(inputs: Inputs) -> tuple[str, ...]:
    """Return notes for the operator, beyond the terms and the clamps."""
    return (*_pending(inputs), *_infeasible(inputs), *_assumed(inputs), *inputs.seen.notes)


def _pending(inputs: Inputs) -> list[str]:
    """Return a note on pending replicas. The status, which is newer, has the time they are pending."""
    snapshot = inputs.snapshot
    if not snapshot.pending:
        return []
    why = f" Reason: {snapshot.pending_reason}" if snapshot.pending_reason else ""
    return [f"capacity: {are(snapshot.pending, 'replica')} pending.{why}"]


def _infeasible(inputs: Inputs) -> list[str]:
    """Return the targets that no number of replicas can meet, and the limits used instead."""
    knobs, seen, empty = inputs.knobs, inputs.seen, inputs.sizing.feasibility
    found = []
    prefill, target = seen.ttft_prefill, f"The target ttft_target_s is {amount(knobs.ttft_target_s)} s"
    if prefill.count > 0 and not knobs.ttft_target_s - prefill.at(50) > 0:
        half = f"Half of the prompts take {amount(prefill.at(50))} s of prefill or more."
        found.append(f"infeasible: {half} {target}. More replicas cannot shorten a prefill.")
    elif prefill.count > 0 and (prefill_s := prefill.at(knobs.ttft_percentile)) > knobs.ttft_target_s:
        at = f"P{knobs.ttft_percentile}"
        found.append(f"infeasible at {at}: The {at} of prefill alone is {amount(prefill_s)} s. {target}.")
    elif not empty.ttft and seen.itl.count > 0:
        takes = f"A mean request on an empty replica gets its first token after {amount(empty.ttft_s)} s."
        instead = f"so the fleet is sized for {amount(empty.ttft_limit_s)} s"
        found.append(f"infeasible: {takes} {target}, {instead}.")
    if seen.itl.count > 0 and empty.itl_limit_s > knobs.itl_target_s:
        hardly = "hardly feasible" if empty.itl else "infeasible"
        every = f"A single sequence on an empty replica gets a token every {amount(empty.itl_s)} s."
        target = f"The target itl_target_s is {amount(knobs.itl_target_s)} s"
        found.append(f"{hardly}: {every} {target}, so the fleet is sized for {amount(empty.itl_limit_s)} s.")
    return found


def _assumed(inputs: Inputs) -> list[str]:
    """Return a sentence for each value that comes from the knob `starting_values`, not from a measurement."""
    given = inputs.knobs.starting_values
    if given is None:
        return []
    found = []
    if not inputs.steps_learned:
        found.append("starting_values: No step is measured yet, so they give the capacity of a replica.")
    if given.cold_start_s is not None and not inputs.snapshot.start_measured:
        assumed_s = inputs.snapshot.assumed_start_s
        on = " on a cold node" if inputs.snapshot.cold_start_s is not None else ""
        found.append(f"starting_values: No start{on} is measured yet, so {amount(assumed_s)} s are assumed.")
    return found


def signals(inputs: Inputs) -> dict[str, float]:
    """Return the numbers behind the decision, by the names in docs/operating.md."""
    snapshot, seen, arrivals, sizing = inputs.snapshot, inputs.seen, inputs.arrivals, inputs.sizing
    found = {
        "ready_replicas": snapshot.ready,
        "starting_replicas": snapshot.starting,
        "pending_replicas": snapshot.pending,
        "warm_node": snapshot.warm_node,
        "running_requests": seen.running_requests,
        "running_tokens": seen.running_tokens,
        "waiting_requests": seen.waiting_requests,
        "waiting_tokens": seen.waiting_tokens,
        "held_requests": seen.held_requests,
        "oldest_held_s": seen.oldest_held_s,
        "arrivals_30s_rps": arrivals.last_30s_rps,
        "arrivals_60s_rps": arrivals.last_60s_rps,
        "arrivals_felt_rps": arrivals.weighted_rps,
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
        "ttft_missed_ratio": inputs.ttft_missed,
        "itl_missed_ratio": inputs.itl_missed,
    }
    percentile = inputs.knobs.ttft_percentile
    for part in ("ttft_queue", "ttft_prefill", "itl"):
        latency = getattr(seen, part)
        if latency.count > 0:
            found[f"{part}_p{percentile}_s"] = latency.at(percentile)
    for name in ("cold_start_s", "warm_node_start_s", "cold_node_start_s"):
        start_s = getattr(snapshot, name)
        if start_s is not None and math.isfinite(start_s):
            found[name] = start_s
    return found
