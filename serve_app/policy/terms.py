"""The terms of the policy: each looks at one thing and says how many replicas it needs."""

import math

from serve_app.policy.capacity_model import KV_FILL, MOST_REPLICAS, round_up
from serve_app.policy.demand import BUCKET_S, MINUTE
from serve_app.policy.explanation import Term, are, counted
from serve_app.policy.inputs import Inputs
from serve_app.policy.observe import Observation
from serve_app.policy.state import PolicyState
from serve_app.settings.knobs import scheduled_minimum

# A request that has waited for a cold start hardly notices a tenth of it more; replicas that clear the
# backlog faster would be idle a second later.
_BACKLOG_SHARE = 0.1


def load_terms(inputs: Inputs) -> list[Term]:
    """Return what the load of now and of the recent past needs."""
    terms = [_queue(inputs), _queue_tokens(inputs), _arrivals(inputs), _kv_cache(inputs.seen)]
    if inputs.sizing.correction < 1.0 or inputs.measured.ttft_missed:
        terms.append(_ttft(inputs))
    if inputs.knobs.forecast:
        terms.append(_forecast(inputs))
    return terms


def _so(replicas: int, headroom: float = 0.0) -> str:
    """Return how the explanation of a term ends."""
    return f"so {are(replicas, 'replica')} needed{' with headroom' if replicas and headroom else ''}"


def _arrivals(inputs: Inputs) -> Term:
    """The arrival rate over what the model says one replica can serve."""
    short, long = inputs.state.demand.recent(inputs.now)
    rate, window = max(short, long), inputs.state.demand.window
    replicas = inputs.sizing.replicas(rate, corrected=False)
    assumed = inputs.knobs.starting_values and not inputs.state.service.steps
    source = " (by starting_values)" if assumed else ""
    return Term(
        "arrivals",
        replicas,
        f"{rate:.3g} requests/s arrive ({short:.3g} over {window // 2 * BUCKET_S:g} s, {long:.3g} over "
        f"{window * BUCKET_S:g} s), and one replica can serve {inputs.sizing.model_rps(replicas):.3g} "
        f"requests/s{source}, "
        f"{_so(replicas, inputs.sizing.headroom)}",
    )


def _ttft(inputs: Inputs) -> Term:
    """The arrival rate over what one replica can serve by the times to first token that were measured."""
    replicas = inputs.sizing.replicas(max(inputs.state.demand.recent(inputs.now)))
    return Term(
        "ttft",
        replicas,
        f"{100 * inputs.measured.ttft_missed:.2g} % of requests miss the TTFT target for lack of replicas, "
        f"and {100 - inputs.knobs.ttft_percentile} % may; a replica's capacity is corrected by the factor "
        f"{inputs.sizing.correction:.2f}, " + _so(replicas, inputs.sizing.headroom),
    )


def standing_queue(state: PolicyState, seen: Observation, ready: int) -> tuple[float, float]:
    """Return the requests and tokens that have waited throughout the delay, which do not clear by themselves.

    It is the least of the recent past, as CoDel measures a queue: bursts that replicas clear within
    `upscale_delay_s` need no other replica. With no replica ready nothing clears, and all of it counts.
    """
    if not ready:
        return seen.queued_requests, seen.queued_tokens
    return min(entry[1] for entry in state.queue), min(entry[2] for entry in state.queue)


def most_for_a_queue(inputs: Inputs) -> int:
    """Return the most replicas that a queue may ask for: while replicas start, those already asked for.

    What piles up meanwhile does so because they are not there yet. Replicas asked for late would come when
    those that start now have cleared it: at 1 request/s and 60 s, 60 requests would have asked for eight
    replicas where one is enough. Arrivals and the forecast go on asking.
    """
    snapshot, woken_at = inputs.snapshot, inputs.state.woken_at
    waking = woken_at is not None and inputs.now - woken_at > inputs.knobs.upscale_delay_s
    starting = 0 < snapshot.ready < snapshot.target
    return snapshot.target if waking or starting else MOST_REPLICAS


def _so_of_queue(inputs: Inputs, needed: int) -> tuple[int, str]:
    """Return the replicas that a queue which needs `needed` asks for, and how its explanation ends."""
    most = most_for_a_queue(inputs)
    if needed <= most:
        return needed, _so(needed)
    return most, f"{_so(needed)}; a queue asks for {most} at most while replicas start"


def _queue(inputs: Inputs) -> Term:
    requests, _ = standing_queue(inputs.state, inputs.seen, inputs.snapshot.ready)
    target = inputs.knobs.queue_target_per_replica
    replicas, so = _so_of_queue(inputs, round_up(requests / target))
    why = f"{are(requests, 'request')} waiting"
    return Term("queue", replicas, f"{why}; the target is {target:g} per replica, {so}" if requests else why)


def _queue_tokens(inputs: Inputs) -> Term:
    """Replicas that prefill the waiting prompts in a tenth of a cold start, and no more than the prompts.

    The TTFT target is missed by all of a cold start already, whatever the number of replicas.
    """
    requests, tokens = standing_queue(inputs.state, inputs.seen, inputs.snapshot.ready)
    per_token_s = inputs.sizing.step.per_prefill_token_s * inputs.sizing.mix.computed_share
    work_s = tokens * per_token_s
    one_prompt_s = work_s / requests if requests > 0 else 0.0
    budget_s = max(inputs.knobs.ttft_target_s, one_prompt_s, _BACKLOG_SHARE * inputs.snapshot.horizon_s)
    replicas, so = _so_of_queue(inputs, min(round_up(requests), round_up(work_s / budget_s)))
    why = f"{are(tokens, 'prompt token')} waiting"
    if tokens:
        why += f"; the target is to prefill them ({work_s:.2g} s of work) within {budget_s:.2g} s, {so}"
    return Term("queue_tokens", replicas, why)


def _kv_cache(seen: Observation) -> Term:
    """Replicas whose KV caches hold the running and the waiting requests."""
    tokens = seen.running_tokens + seen.waiting_tokens
    if seen.kv_cache_tokens <= 0 or tokens <= 0:
        return Term("kv_cache", 0, "no running or waiting request needs KV cache")
    room = KV_FILL * seen.kv_cache_tokens
    replicas = max(1, round_up(tokens / room))
    return Term(
        "kv_cache",
        replicas,
        f"running and waiting requests need KV cache for {tokens:.0f} tokens, and one replica has room for "
        f"{room:.0f} ({KV_FILL:.0%} of its cache), {_so(replicas)}",
    )


def _quantile(inputs: Inputs) -> float:
    """Return the share of requests that the forecast covers: the knob's, where a start takes a minute.

    What it leaves out is late for as long as a start takes, so a shorter start may leave out more. How much,
    the root and the bound, was found in replays with starts of 3 and 20 s.
    """
    left_out = 1.0 - inputs.knobs.forecast_quantile
    more = math.sqrt(60.0 / max(inputs.snapshot.horizon_s, 1.0))
    return 1.0 - min(left_out * min(max(more, 1.0), 4.0), 1.0)


def _forecast(inputs: Inputs) -> Term:
    """What demand may come to within a cold start: as much as it has risen, and no more than it has been.

    Both at the quantile q of the requests remembered. The most seen in n windows is no bound as far as none
    of them was of those above the quantile, which has the probability q^n: so much of a rise is added.
    """
    q = _quantile(inputs)
    peaks = inputs.state.demand.peaks
    rise, most = peaks.rise(q), peaks.level(q)
    level = inputs.felt_rps
    unsure = q**peaks.windows
    demand = max(level, min(level + rise, most) + unsure * rise)
    replicas = inputs.sizing.replicas(demand)
    why = (
        f"demand is {level:.3g} requests/s and may reach {demand:.3g} requests/s within "
        f"{inputs.snapshot.horizon_s:.0f} s, the time a replica takes to start: {q:.0%} of past requests "
        f"arrived at {most:.3g} requests/s or less, after a rise of {rise:.3g} or less"
    )
    if demand > level and unsure * rise > 0.05 * demand:
        minutes = peaks.windows * inputs.state.demand.window / MINUTE
        why += f" ({unsure:.0%} of it is added, because only {minutes:.2g} minutes are known)"
    return Term("forecast", replicas, f"{why}, {_so(replicas, inputs.sizing.headroom)}")


def baseline_terms(inputs: Inputs) -> list[Term]:
    """Return what is needed whatever the load: the wake, the keep-alive, schedules."""
    terms = []
    if inputs.seen.queued_requests > 0 or inputs.seen.running_requests > 0:
        terms.append(Term("wake", 1, "requests are waiting or running"))
    elif inputs.snapshot.target > 0:
        delay_s = inputs.knobs.downscale_to_zero_delay_s
        if inputs.state.idle_since is None:
            terms.append(Term("keep_alive", 1, "the model is not known to be idle"))
        else:
            why = f"the model has been idle for {inputs.idle_s:.0f} s; it keeps a replica for {delay_s:g} s"
            terms.append(Term("keep_alive", int(inputs.idle_s < delay_s), why))
    if inputs.knobs.schedules:
        lead_s = inputs.snapshot.horizon_s
        scheduled = scheduled_minimum(inputs.knobs.schedules, inputs.now, lead_s)
        why = f"the windows that are open now or within {lead_s:.0f} s need {counted(scheduled, 'replica')}"
        terms.append(Term("schedule", scheduled, why))
    return terms
