"""The terms of the policy: each looks at one thing and says how many replicas it calls for."""

from __future__ import annotations

from serve_app.policy.decision import Term
from serve_app.policy.observe import Observation
from serve_app.policy.situation import Situation
from serve_app.policy.sizing import MOST_REPLICAS, whole
from serve_app.policy.state import PolicyState
from serve_app.settings.schedule import scheduled_minimum

# Who has waited a cold start does not notice a tenth of it more; clearing the backlog faster would
# take replicas that are idle a second later.
_BACKLOG_SHARE = 0.1
# A burst reaches the ingress over some hundred milliseconds, or a second from a slow client. Its size is
# known only after that; half of it if nobody has come since the last look.
COLD_BURST_S = 1.0
# Reported tokens are instantaneous; one block of the cache is always half full.
_KV_FILL = 0.9


def load_terms(at: Situation) -> list[Term]:
    """What the load of now and of the recent past calls for."""
    terms = [_queue(at), _queue_tokens(at), _arrivals(at), _kv_cache(at.seen)]
    if at.sizing.correction < 1.0 or at.measured.ttft_missed:
        terms.append(_ttft(at))
    if at.knobs.forecast:
        terms.append(_forecast(at))
    return terms


def _arrivals(at: Situation) -> Term:
    """The arrival rate over what a replica can carry by the model."""
    short, long = (rate.requests for rate in at.state.demand.recent(at.now))
    rate = max(short, long)
    replicas = at.sizing.replicas(rate, corrected=False)
    guess = ", by starting_values" if at.knobs.starting_values and not at.state.service.steps else ""
    return Term(
        "arrivals",
        replicas,
        f"{rate:.3g} requests/s arrive ({short:.3g} over 30 s, {long:.3g} over 60 s); "
        f"a replica carries {at.sizing.model_rps(replicas):.3g}/s{guess}",
    )


def _ttft(at: Situation) -> Term:
    """The same with capacity corrected by the times to first token that were measured."""
    return Term(
        "ttft",
        at.sizing.replicas(at.state.demand.recent_rps(at.now)),
        f"{100 * at.measured.ttft_missed:.2g} % miss the TTFT target for lack of replicas, "
        f"{100 - at.knobs.ttft_percentile} % may; capacity corrected by {at.sizing.correction:.2f}",
    )


def standing_queue(state: PolicyState, seen: Observation, ready: int) -> tuple[float, float]:
    """(requests, tokens) that have waited all through the delay: the queue that does not clear by itself.

    The least of the recent past, as CoDel measures a queue: bursts that replicas clear within
    `upscale_delay_s` need no other replica. With none ready nothing clears, and all of it counts.
    """
    if not ready:
        return seen.queued_requests, seen.queued_tokens
    return min(entry[1] for entry in state.queue), min(entry[2] for entry in state.queue)


def queue_may_ask(at: Situation) -> int:
    """The most a queue may ask for: no bound, or, while replicas are on their way, what has been asked for.

    What piles up meanwhile does so because they are not there yet. Replicas asked for late would come when
    those on their way have cleared it: at 1 request/s and 60 s, 60 requests would have asked for eight
    replicas where one is enough. Arrivals and the forecast go on asking.
    """
    snapshot, woken_at = at.snapshot, at.state.woken_at
    waking = woken_at is not None and at.now - woken_at > at.knobs.upscale_delay_s
    coming = 0 < snapshot.ready < snapshot.target
    return snapshot.target if waking or coming else MOST_REPLICAS


def _queue(at: Situation) -> Term:
    requests, _ = standing_queue(at.state, at.seen, at.snapshot.ready)
    target = at.knobs.queue_target_per_replica
    return Term(
        "queue",
        min(queue_may_ask(at), whole(requests / target)),
        f"{requests:.0f} requests have been waiting, {target:g} a replica may",
    )


def _queue_tokens(at: Situation) -> Term:
    """Replicas that prefill what waits in a tenth of a cold start, and no more than there are prompts.

    Within the TTFT target would be too late by all of a cold start, whatever the number of replicas.
    """
    requests, tokens = standing_queue(at.state, at.seen, at.snapshot.ready)
    per_token_s = at.sizing.step.per_prefill_token_s * at.sizing.mix.computed_share
    work_s = tokens * per_token_s
    one_prompt_s = work_s / requests if requests > 0 else 0.0
    budget_s = max(at.knobs.ttft_target_s, one_prompt_s, _BACKLOG_SHARE * at.snapshot.horizon_s)
    return Term(
        "queue_tokens",
        min(queue_may_ask(at), whole(requests), whole(work_s / budget_s)),
        f"{tokens:.0f} prompt tokens wait, {work_s:.2g} s of prefill, which may take {budget_s:.2g} s",
    )


def _kv_cache(seen: Observation) -> Term:
    """Replicas whose KV caches hold what runs and what waits to run."""
    tokens = seen.running_tokens + seen.waiting_tokens
    if seen.kv_cache_tokens <= 0 or tokens <= 0:
        return Term("kv_cache", 0, "the KV cache is empty")
    room = _KV_FILL * seen.kv_cache_tokens
    return Term(
        "kv_cache",
        max(1, whole(tokens / room)),
        f"{tokens:.0f} tokens need KV cache, {room:.0f} a replica ({_KV_FILL:.0%} of it)",
    )


def _forecast(at: Situation) -> Term:
    """What demand may come to within a cold start: as much as it has risen, and no more than it has been.

    Both at the quantile q of the requests remembered. The most seen in n minutes is no bound as far as none
    of them was of those above the quantile, which has the probability q^n: so much of a rise is added.
    """
    q = at.knobs.forecast_quantile
    peaks = at.state.demand.peaks
    rise, most = peaks.rise(q), peaks.level(q)
    level = at.felt_rps
    unsure = q**peaks.minutes
    demand = max(level, min(level + rise, most) + unsure * rise)
    why = (
        f"{demand:.3g} requests/s within {at.snapshot.horizon_s:.0f} s, a replica's start: now {level:.3g}; "
        f"{q:.0%} of the requests came at no more than {most:.3g} and after a rise of at most {rise:.3g}"
    )
    if demand > level and unsure * rise > 0.05 * demand:
        why += f", {unsure:.0%} of it added, for only {peaks.minutes:.2g} minutes are known"
    return Term("forecast", at.sizing.replicas(demand), why)


def standing_terms(at: Situation) -> list[Term]:
    """What is asked for whatever the load: the keep-alive, a wake, schedules."""
    terms = []
    if at.seen.queued_requests > 0 or at.seen.running_requests > 0:
        terms.append(Term("wake", 1, "requests are waiting or running"))
    elif at.snapshot.target > 0:
        delay_s = at.knobs.downscale_to_zero_delay_s
        if at.state.idle_since is None:
            terms.append(Term("keep_alive", 1, "not known to be idle"))
        else:
            why = f"idle for {at.idle_s:.0f} s of {delay_s:g} s"
            terms.append(Term("keep_alive", int(at.idle_s < delay_s), why))
    if at.knobs.schedules:
        lead_s = at.snapshot.horizon_s
        scheduled = scheduled_minimum(at.knobs.schedules, at.now, lead_s)
        terms.append(Term("schedule", scheduled, f"windows open now or within {lead_s:.0f} s"))
    return terms
