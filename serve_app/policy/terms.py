"""The terms of the policy: each looks at one thing and says how many replicas it needs."""

import math
from dataclasses import dataclass

from serve_app.policy.capacity_model import KV_FILL, MOST_REPLICAS, round_up
from serve_app.policy.explanation import Term, amount, are, counted
from serve_app.policy.inputs import Inputs
from serve_app.policy.observation import Observation
from serve_app.settings.knobs import scheduled_minimum

IDLE = Term("idle", 0, "No request is waiting, running or arriving.")
_AT_ZERO = "The model is at zero replicas, and no request is waiting."
# A request that has waited for a cold start hardly notices a tenth of it more; replicas that clear the
# backlog faster would be idle a second later.
_BACKLOG_SHARE = 0.1
_STANDARD_ERRORS = 2.0


@dataclass(frozen=True, slots=True)
class Needs:
    """What is needed: the second step of a decision, made of its inputs."""

    inputs: Inputs
    load: tuple[Term, ...]
    """What the load of now, of the recent past and of the near future needs."""
    baseline: tuple[Term, ...]
    """What is needed whatever the load."""
    kept: int
    """What the load may need if its rate was read too low; only with fewer can a replica be removed."""

    @property
    def strongest(self) -> Term:
        """The term that needs the most replicas."""
        return max([IDLE, *self.load, *self.baseline], key=lambda term: term.replicas)

    @property
    def wanted(self) -> int:
        """The replicas that the terms need, within the bounds."""
        return min(
            max(self.strongest.replicas, self.inputs.knobs.min_replicas), self.inputs.knobs.max_replicas
        )

    @property
    def scheduled(self) -> int:
        """The replicas that schedules ask for."""
        return next((term.replicas for term in self.baseline if term.name == "schedule"), 0)


def size(inputs: Inputs) -> Needs:
    """Return what each term needs."""
    rps = _expected_rps(inputs)
    load = _load_terms(inputs, rps)
    most = max(term.replicas for term in load)
    return Needs(inputs, load, _baseline_terms(inputs), max(most, _kept(inputs, rps)) if most else 0)


def _load_terms(inputs: Inputs, rps: float) -> tuple[Term, ...]:
    """Return the terms of the load: they look back, and need nothing where no request is left to serve."""
    terms = (_demand(inputs, rps), _queue(inputs), _kv_cache(inputs.seen))
    if not inputs.snapshot.target and not inputs.seen.queued_requests:
        none = _AT_ZERO
    elif inputs.idle_s is not None and inputs.idle_s >= inputs.knobs.downscale_to_zero_delay_s:
        none = f"The model has been idle for {inputs.idle_s:.0f} s, so past load no longer counts."
    else:
        return terms
    return tuple(Term(term.name, 0, none) for term in terms)


def _agreeing(total: float, each: float) -> tuple[str, str]:
    """Return both numbers with the digits it takes for a reader who divides them to get the same replicas."""
    for digits in range(3, 16):
        shown, one = amount(total, digits), amount(each, digits)
        by_reader = float(shown.replace(",", "")) / float(one.replace(",", ""))
        if round_up(by_reader) == round_up(total / each):
            break
    return shown, one


def _demand(inputs: Inputs, rps: float) -> Term:
    """The requests that arrive, or may arrive before a replica that is asked for now is there."""
    arrivals, sizing = inputs.arrivals, inputs.sizing
    replicas = sizing.replicas(rps)
    if replicas == sizing.replicas(arrivals.rps):
        rps = arrivals.rps  # a forecast that asks for nothing is no reason
    if not rps:
        return Term("demand", 0, "Load now: 0 requests/s, so no replica is needed.")
    one_rps = max(sizing.rps(replicas), 1e-9)
    load, one = _agreeing(rps, one_rps)
    loaded = max(1, round_up(rps / one_rps))
    now = load if rps == arrivals.rps else amount(arrivals.rps)
    over = f"Load over the last {amount(arrivals.over_s)} s" if arrivals.rps else "Load now"
    source = " (from starting_values)" if inputs.knobs.starting_values and not inputs.steps_learned else ""
    why = [f"{over}: {now} requests/s.", *(_rise(inputs, rps, load) if rps > arrivals.rps else ())]
    why.append(f"One replica serves {one} requests/s{source}, so {are(loaded, 'replica')} needed.")
    if replicas > loaded:
        more = "Headroom" if sizing.headroom else "The wait for a free replica"
        why.append(f"{more} adds {counted(replicas - loaded, 'replica')}.")
    return Term("demand", replicas, " ".join(why))


def _expected_rps(inputs: Inputs) -> float:
    """Return the requests per second to size the fleet for."""
    return max(inputs.arrivals.rps, inputs.forecast.rps if inputs.forecast is not None else 0.0)


def _rise(inputs: Inputs, rps: float, load: str) -> list[str]:
    """Return why the fleet is sized for `rps`, which is shown as `load`, and not for what arrives now."""
    forecast, felt_rps = inputs.forecast, inputs.arrivals.felt_rps
    start_s = amount(inputs.snapshot.horizon_s)
    allowed = f"Allowed for while a replica starts ({start_s} s): a rise to {load} requests/s."
    felt = load if rps == felt_rps else amount(felt_rps)
    clumps = f"Requests come in clumps, so the load counts as {felt} requests/s."
    why = [clumps] if felt_rps > inputs.arrivals.rps else []
    if forecast is None or rps == felt_rps:
        return why
    share = f"{100 * forecast.quantile:.0f} % of past requests"
    if felt_rps + forecast.rise > forecast.most:
        past = f"For {share}, the load was no higher."
    else:
        past = f"For {share}{' at a similar load' if forecast.alike else ''}, the load rose no more."
    why += [allowed, past]
    if forecast.unsure_rps > 0.05 * rps:
        known, more = amount(forecast.known_minutes, 2), amount(forecast.unsure_rps, 2)
        why.append(f"Only {known} minutes of traffic are known, so the rise includes {more} requests/s more.")
    return why


def _kept(inputs: Inputs, rps: float) -> int:
    """Return the replicas for `rps` requests per second and two standard errors of their reading.

    So many Poisson arrivals scatter by their root. Without it 12 requests/s for two hours, which are read as
    11.1 to 12.9, took a replica away and brought it back 22 times an hour.
    """
    error = math.sqrt(inputs.arrivals.rps / inputs.arrivals.window_s)
    return inputs.sizing.replicas(rps + _STANDARD_ERRORS * error)


def kept_below_rps(inputs: Inputs, replicas: int) -> float:
    """Return the requests per second below which `replicas` are kept and no more: the inverse of `_kept`."""
    half = _STANDARD_ERRORS / 2 / math.sqrt(inputs.arrivals.window_s)
    root = math.sqrt(inputs.sizing.most_rps(replicas) + half * half) - half
    return root * root


def most_for_a_queue(inputs: Inputs) -> int:
    """Return the most replicas that a queue may ask for: while replicas start, those already asked for.

    What piles up meanwhile does so because they are not there yet. Replicas asked for late would come when
    those that start now have cleared it: at 1 request/s and 60 s, 60 requests would have asked for eight
    replicas where one is enough. The demand goes on asking.
    """
    snapshot = inputs.snapshot
    waking = inputs.waking_s > inputs.knobs.upscale_delay_s
    starting = 0 < snapshot.ready < snapshot.target
    return snapshot.target if waking or starting else MOST_REPLICAS


def _queue(inputs: Inputs) -> Term:
    """What waits, over what may: so many requests a replica, their prefill within a tenth of a cold start.

    The TTFT target is missed by all of a cold start already, whatever the number of replicas; and more
    replicas than prompts would prefill nothing.
    """
    requests, tokens = inputs.standing_requests, inputs.standing_tokens
    if not requests and not tokens:
        return Term("queue", 0, "No request is waiting.")
    allowed = inputs.knobs.queue_target_per_replica
    work_s = tokens * inputs.sizing.step.per_prefill_token_s * inputs.sizing.mix.computed_share
    one_prompt_s = work_s / requests if requests > 0 else 0.0
    budget_s = max(inputs.knobs.ttft_target_s, one_prompt_s, _BACKLOG_SHARE * inputs.snapshot.horizon_s)
    by_number, by_work = round_up(requests / allowed), min(round_up(requests), round_up(work_s / budget_s))
    needed = max(by_number, by_work)
    replicas = min(needed, most_for_a_queue(inputs))
    if by_number == needed:
        shown, limit = _agreeing(requests, allowed)
        why = f"{shown} request{' is' if shown == '1' else 's are'} waiting. "
        why += f"One replica may have a queue of {limit} requests"
    else:
        work, limit = _agreeing(work_s, budget_s)
        why = f"The waiting requests need {work} s of prefill. One replica may have a queue of {limit} s"
    why += f", so {are(needed, 'replica')} needed."
    if replicas < needed:
        why += f" While replicas start, the queue asks for {counted(replicas, 'replica')} at most."
    return Term("queue", replicas, why)


def _kv_cache(seen: Observation) -> Term:
    """Replicas whose KV caches hold the running and the waiting requests."""
    tokens = seen.running_tokens + seen.waiting_tokens
    if seen.kv_cache_tokens <= 0 or tokens <= 0:
        return Term("kv_cache", 0, "No running or waiting request needs KV cache.")
    room = KV_FILL * seen.kv_cache_tokens
    replicas = max(1, round_up(tokens / room))
    shown, one = _agreeing(tokens, room)
    why = f"Running and waiting requests need KV cache for {shown} tokens. "
    why += f"One replica has room for {one} tokens, so {are(replicas, 'replica')} needed."
    return Term("kv_cache", replicas, why)


def _baseline_terms(inputs: Inputs) -> tuple[Term, ...]:
    """Return what is needed whatever the load: a replica while there is work or may be, and schedules."""
    terms = [_awake(inputs)]
    if inputs.knobs.schedules:
        lead_s = inputs.snapshot.horizon_s
        scheduled = scheduled_minimum(inputs.knobs.schedules, inputs.now, lead_s)
        why = f"Schedules that are open now or within {amount(lead_s)} s ask for "
        terms.append(Term("schedule", scheduled, f"{why}{counted(scheduled, 'replica')}."))
    return tuple(terms)


def _awake(inputs: Inputs) -> Term:
    """One replica while requests wait or run, and for `downscale_to_zero_delay_s` after the last."""
    delay_s = inputs.knobs.downscale_to_zero_delay_s
    if inputs.seen.queued_requests > 0 or inputs.seen.running_requests > 0:
        return Term("awake", 1, "Requests are waiting or running, so 1 replica is needed.")
    if not inputs.snapshot.target:
        return Term("awake", 0, _AT_ZERO)
    if inputs.idle_s is None:
        return Term("awake", 1, "A request has just ended, or not every replica reports.")
    kept = inputs.idle_s < delay_s
    why = f"An idle model keeps 1 replica for {amount(delay_s)} s{'' if kept else ', which are over'}."
    return Term("awake", int(kept), why)
