"""The terms of the policy: each looks at one thing and says how many replicas it needs."""

import math
from dataclasses import dataclass

from serve_app.policy.capacity_model import KV_FILL, MOST_REPLICAS, round_up
from serve_app.policy.explanation import Term, are, counted
from serve_app.policy.inputs import Forecast, Inputs
from serve_app.policy.observation import Observation
from serve_app.settings.knobs import scheduled_minimum

IDLE = Term("idle", 0, "no request is waiting, running or arriving")
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
    rps, why = _expected(inputs)
    load = _load_terms(inputs, rps, why)
    most = max(term.replicas for term in load)
    return Needs(inputs, load, _baseline_terms(inputs), max(most, _kept(inputs, rps)) if most else 0)


def _load_terms(inputs: Inputs, rps: float, why: str) -> tuple[Term, ...]:
    """Return the terms of the load: they look back, and need nothing where no request is left to serve."""
    terms = (_demand(inputs, rps, why), _queue(inputs), _kv_cache(inputs.seen))
    if not inputs.snapshot.target and not inputs.seen.queued_requests:
        none = "the model is at zero and no request is waiting"
    elif inputs.idle_s is not None and inputs.idle_s >= inputs.knobs.downscale_to_zero_delay_s:
        none = f"the model has been idle for {inputs.idle_s:.0f} s"
    else:
        return terms
    return tuple(Term(term.name, 0, none) for term in terms)


def _so(replicas: int, headroom: float = 0.0) -> str:
    """Return how the explanation of a term ends."""
    return f"so {are(replicas, 'replica')} needed{' with headroom' if replicas and headroom else ''}"


def _demand(inputs: Inputs, rps: float, why: str) -> Term:
    """The requests that arrive, or may arrive before a replica that is asked for now is there."""
    arrivals, sizing = inputs.arrivals, inputs.sizing
    replicas = sizing.replicas(rps)
    if replicas == sizing.replicas(arrivals.rps):
        why = ""  # a forecast that asks for nothing is no reason
    assumed = inputs.knobs.starting_values and not inputs.steps_learned
    source = " (by starting_values)" if assumed else ""
    return Term(
        "demand",
        replicas,
        f"{arrivals.rps:.3g} requests/s arrive over {arrivals.over_s:g} s{why}; one replica can serve "
        f"{sizing.rps(replicas):.3g} requests/s{source}, " + _so(replicas, sizing.headroom),
    )


def _expected(inputs: Inputs) -> tuple[float, str]:
    """Return the requests per second to size the fleet for, and why if they are more than arrive now."""
    rate, rps, why = inputs.arrivals.rps, 0.0, ""
    if inputs.forecast is not None:
        rps, why = inputs.forecast.rps, _why_forecast(inputs, inputs.forecast)
    told = inputs.daily
    if told is not None and told.rps > rps:
        rps, horizon_s = told.rps, inputs.snapshot.horizon_s
        why = f"; at this time of day {told.source} tells of {rps:.3g} requests/s within {horizon_s:.3g} s"
        why += f", which has been {told.trust:.0%} less wrong than without it"
    return (rps, why) if rps > rate else (rate, "")


def _why_forecast(inputs: Inputs, forecast: Forecast) -> str:
    felt_rps = inputs.arrivals.felt_rps
    felt = f"; they come in clumps, which feel like {felt_rps:.3g}"
    if forecast.rps <= felt_rps:
        return felt
    why = felt if felt_rps > inputs.arrivals.rps else ""
    why += (
        f"; they may become {forecast.rps:.3g} within {inputs.snapshot.horizon_s:.3g} s, the time a replica "
        f"takes to start, because for {forecast.quantile:.0%} of past requests demand had risen by "
        f"{forecast.rise:.3g} or less {'from where it is now' if forecast.alike else 'from wherever it was'}"
    )
    why += f", to {forecast.most:.3g} or less" if felt_rps + forecast.rise > forecast.most else ""
    if forecast.unsure_rps > 0.05 * forecast.rps:
        known = f"only {forecast.known_minutes:.2g} minutes are known"
        why += f" (more than that by {forecast.unsure_rps:.2g}, as {known})"
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
        return Term("queue", 0, "no request is waiting")
    allowed = inputs.knobs.queue_target_per_replica
    work_s = tokens * inputs.sizing.step.per_prefill_token_s * inputs.sizing.mix.computed_share
    one_prompt_s = work_s / requests if requests > 0 else 0.0
    budget_s = max(inputs.knobs.ttft_target_s, one_prompt_s, _BACKLOG_SHARE * inputs.snapshot.horizon_s)
    by_work = min(round_up(requests), round_up(work_s / budget_s))
    needed = max(round_up(requests / allowed), by_work)
    replicas = min(needed, most_for_a_queue(inputs))
    so = _so(needed)
    if replicas < needed:
        so += f"; a queue asks for {replicas} at most while replicas start"
    why = f"{are(requests, 'request')} waiting, and the target is {allowed:g} per replica; they need "
    why += f"{work_s:.2g} s of prefill, and the target is {budget_s:.2g} s"
    return Term("queue", replicas, f"{why}, {so}")


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


def _baseline_terms(inputs: Inputs) -> tuple[Term, ...]:
    """Return what is needed whatever the load: a replica while there is work or may be, and schedules."""
    terms = [_awake(inputs)]
    if inputs.knobs.schedules:
        lead_s = inputs.snapshot.horizon_s
        scheduled = scheduled_minimum(inputs.knobs.schedules, inputs.now, lead_s)
        why = f"the windows that are open now or within {lead_s:.3g} s need {counted(scheduled, 'replica')}"
        terms.append(Term("schedule", scheduled, why))
    return tuple(terms)


def _awake(inputs: Inputs) -> Term:
    """One replica while requests wait or run, and for `downscale_to_zero_delay_s` after the last."""
    delay_s = inputs.knobs.downscale_to_zero_delay_s
    if inputs.seen.queued_requests > 0 or inputs.seen.running_requests > 0:
        return Term("awake", 1, "requests are waiting or running")
    if not inputs.snapshot.target:
        return Term("awake", 0, "the model is at zero and no request is waiting")
    if inputs.idle_s is None:
        return Term("awake", 1, "the model is not known to be idle")
    why = f"the model has been idle for {inputs.idle_s:.0f} s; it keeps a replica for {delay_s:g} s"
    return Term("awake", int(inputs.idle_s < delay_s), why)
