"""The scaling policy: how many replicas one model should have, and why. Pure: no Ray, no clock, no I/O.

reports -> memory -> inputs -> terms -> the largest need -> bounds -> scale-up at once, scale-down with
caution -> mode -> target

Call `next_decision` about once a second; any interval works.
"""

from collections.abc import Mapping
from dataclasses import asdict, field, replace
from typing import Any, Literal

from serve_app.policy import background, reasons
from serve_app.policy.capacity_model import KV_FILL, round_up
from serve_app.policy.inputs import Inputs, learn
from serve_app.policy.reports import Snapshot
from serve_app.policy.state import Need, PolicyState
from serve_app.settings.knobs import Knobs, scheduled_minimum
from serve_app.wire.quick_dataclass import quick_dataclass

_LONGEST_GAP_S = 600.0
"""After a longer gap between decisions, delays begin anew. A restart of Ray's controller takes far less."""
# After a cold start, a tenth of its time more hardly matters to a request. Replicas that clear the backlog
# faster would be idle a second later.
_BACKLOG_SHARE = 0.1
COLD_BURST_S = 1.0
"""A burst arrives within some hundred milliseconds, or a second from a slow client. Its size is known after
this time, or earlier if no request has come for `_QUIET_BURST_S`."""
_QUIET_BURST_S = 0.2
_AGES_KEPT = 20
"""A record keeps the ages of this many reports, the oldest. The ages of 1,000 replicas would take 30 KB."""

ClampName = Literal["bounds", "delay", "signals", "batch_limit", "mode", "share"]


@quick_dataclass(frozen=True, slots=True)
class Term:
    """One term: the replicas that it needs, and why."""

    name: str
    replicas: int
    why: str


@quick_dataclass(frozen=True, slots=True)
class Clamp:
    """A limit that kept the target from the need of the terms, and its effect."""

    name: ClampName
    effect: str


@quick_dataclass(frozen=True, slots=True)
class Claim:
    """What the model may ask of a fleet that models share (`fleet_share`)."""

    replicas: int = 0
    """The replicas for requests that wait, run or arrive, without those of lane `background`."""
    idle_s: float = 0.0
    start_s: float = 60.0
    """The measured or assumed seconds of a start."""
    silent: bool = True
    """Whether too few replicas report to say anything; then no replica may be taken."""


@quick_dataclass(frozen=True, slots=True)
class Decision:
    """The target, the reasons, and the numbers behind the decision."""

    target: int
    """Replicas to ask for now."""
    wanted: int
    """The need of the terms within the bounds: the target without delays and mode `advise`."""
    binding: str
    """The name of the term that needs the most replicas, or of the clamp that set the target."""
    reason: str
    counterfactual: str
    """When the target would rise, and when it can fall."""
    terms: tuple[Term, ...] = ()
    clamps: tuple[Clamp, ...] = ()
    signals: Mapping[str, float] = field(default_factory=dict)
    """Sums over the fresh reports, and derived numbers."""
    ages_s: Mapping[str, float] = field(default_factory=dict)
    """The age of every replica's report."""
    notes: tuple[str, ...] = ()
    recent_needs: tuple[Need, ...] = ()
    """The recent needs of the load, for the `Inputs` of the next decision."""
    claim: Claim = Claim()
    load: float = 0.0
    """The replicas that the load fills, headroom included: the demand term before it is rounded up."""
    variants: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """For a model with variants, the replicas and the price of each."""
    gives_to: str = ""
    """The model that gets a place of this model."""

    def document(self) -> dict[str, Any]:
        """Return the reasons as plain data, with numbers rounded to four digits."""
        variants = {name: _round_values(values) for name, values in self.variants.items()}
        oldest = sorted(self.ages_s.items(), key=lambda item: -item[1])[:_AGES_KEPT]
        return {
            "binding": self.binding,
            "reason": self.reason,
            "counterfactual": self.counterfactual,
            "terms": [asdict(term) for term in self.terms],
            "clamps": [asdict(clamp) for clamp in self.clamps],
            "signals": _round_values(self.signals),
            "ages_s": _round_values(dict(oldest)),
            "notes": list(self.notes),
            **({"variants": variants} if variants else {}),
            **({"gives_to": self.gives_to} if self.gives_to else {}),
        }


def _round_values(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in values.items()}


IDLE = Term("idle", 0, "No request is waiting, running or arriving.")


def next_decision(
    snapshot: Snapshot, knobs: Knobs, state: PolicyState, now: float
) -> tuple[Decision, PolicyState]:
    """Return the decision for one model at `now` (Unix time in seconds), and the new memory.

    `state` is the memory from the last decision, or `PolicyState()` at first and after a loss.
    """
    if state.last_at is not None and not 0 <= now - state.last_at <= _LONGEST_GAP_S:
        # Nothing was observed in the gap, so delays begin anew. The learned figures are still valid.
        state = replace(
            state, since=None, idle_since=None, woken_at=None, queue=(), recent_needs=(), background=None
        )
    inputs, state = learn(snapshot, knobs, state, now)
    decision = decide(inputs)
    return decision, replace(state, recent_needs=decision.recent_needs, last_at=now)


def decide(inputs: Inputs) -> Decision:
    """Decide for one model."""
    knobs, current = inputs.knobs, inputs.current
    # Each term says how many replicas it needs. The largest need counts.
    load, scheduled = _load_terms(inputs), _schedule(inputs)
    terms: tuple[Term, ...] = (*load, _awake(inputs), *scheduled)
    others = max([knobs.min_replicas, *[term.replicas for term in terms]])
    needed = background.need(inputs, min(others, knobs.max_replicas))
    added = () if needed is None else (Term("background", needed[0], needed[1] + background.left(inputs)),)
    terms = (*terms, *added)
    strongest = max([*(added or [IDLE]), *terms], key=lambda term: term.replicas)
    # Keep the need within the bounds.
    wanted = min(max(strongest.replicas, knobs.min_replicas), knobs.max_replicas)
    bound = "min_replicas" if wanted > strongest.replicas else "max_replicas"
    clamps = []
    if wanted != strongest.replicas:
        clamps.append(Clamp("bounds", reasons.bounds(bound, wanted, strongest.replicas)))
    # Scale up at once, scale down with caution.
    needs = _recent_needs(inputs, load, added)
    if wanted < current:
        target, limits = _scale_down(inputs, wanted, needs[0])
    else:
        target, limits = _scale_up(inputs, wanted)
    clamps += limits
    if knobs.mode == "advise" and target != current:
        clamps.append(Clamp("mode", reasons.advise(current, target)))
        target = current
    # If a clamp sets the target, the clamp is binding. Else the bound is binding, else the strongest term.
    limiting = [clamp for clamp in clamps if clamp.name != "bounds" and target != wanted]
    limiting += [clamp for clamp in clamps if clamp.name == "bounds"]
    setting = limiting[0] if limiting else None
    binding = strongest.name if setting is None else bound if setting.name == "bounds" else setting.name
    effect = "" if setting is None else f"{setting.effect} "
    minimum = max([term.replicas for term in scheduled], default=0)
    return Decision(
        target=target,
        wanted=wanted,
        binding=binding,
        reason=f"{binding}: {reasons.idle(inputs)}{effect}{strongest.why}",
        counterfactual=reasons.counterfactual(inputs, wanted, target, minimum, needs[0]),
        terms=terms,
        clamps=tuple(clamps),
        signals={**reasons.signals(inputs), **background.signals(inputs)},
        ages_s=inputs.seen.ages_s,
        notes=reasons.notes(inputs),
        recent_needs=needs,
        claim=_claim(inputs, load),
        load=inputs.sizing.load(inputs.expected_rps),
    )


def _claim(inputs: Inputs, load: tuple[Term, ...]) -> Claim:
    seen, snapshot = inputs.seen, inputs.snapshot
    standing = max(term.replicas for term in load if term.name != "demand")
    arriving = round_up(inputs.arrivals.rps / inputs.sizing.rps(max(snapshot.target, 1)))
    least = int(seen.queued_requests > 0 or seen.running_requests > 0)
    return Claim(
        min(max(standing, arriving, least), inputs.knobs.max_replicas),
        inputs.idle_s or 0.0,
        snapshot.cold_start_s or snapshot.assumed_start_s,
        inputs.silent,
    )


# The terms of the load.


def _load_terms(inputs: Inputs) -> tuple[Term, ...]:
    """Return the terms of the load. Past load needs nothing if the model is at zero or has been idle."""
    terms = (_demand(inputs), _queue(inputs), _kv_cache(inputs))
    if not inputs.snapshot.target and not inputs.seen.queued_requests:
        none = reasons.at_zero(inputs)
    elif inputs.idle_s is not None and inputs.idle_s >= inputs.knobs.downscale_to_zero_delay_s:
        none = reasons.past_load(inputs.idle_s)
    else:
        return terms
    return tuple(Term(term.name, 0, none) for term in terms)


def _demand(inputs: Inputs) -> Term:
    """Return the need of the arriving requests, and of the rise until a new replica is ready."""
    rps = inputs.expected_rps
    replicas = inputs.sizing.replicas(rps)
    if replicas == inputs.sizing.replicas(inputs.arrivals.rps):
        rps = inputs.arrivals.rps  # the forecast adds no replica, so the reason does not mention it
    return Term("demand", replicas, reasons.demand(inputs, rps, replicas))


def _queue(inputs: Inputs) -> Term:
    """Return the need of the standing queue, by requests per replica and by seconds of prefill.

    The prefill may take the TTFT target, one prompt, or a tenth of a start, whichever is longest. After a
    cold start the target is missed for any number of replicas. More replicas than prompts would not help.
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
    replicas = min(needed, inputs.most_for_queue)
    if by_number == needed:
        return Term("queue", replicas, reasons.queue_length(requests, allowed, needed, replicas))
    return Term("queue", replicas, reasons.queue_work(work_s, budget_s, needed, replicas))


def _kv_cache(inputs: Inputs) -> Term:
    """Return the replicas whose KV caches hold the running and the waiting requests."""
    seen = inputs.seen
    tokens = seen.running_tokens + seen.waiting_tokens
    if seen.kv_cache_tokens <= 0 or tokens <= 0:
        return Term("kv_cache", 0, "No running or waiting request needs KV cache.")
    room = KV_FILL * seen.kv_cache_tokens
    replicas = max(1, round_up(tokens / room))
    return Term("kv_cache", replicas, reasons.kv_cache(tokens, room, replicas))


# The terms that do not depend on the load.


def _awake(inputs: Inputs) -> Term:
    """Return one replica while requests wait or run, and for `downscale_to_zero_delay_s` afterwards."""
    delay_s = inputs.knobs.downscale_to_zero_delay_s
    if inputs.seen.queued_requests > 0 or inputs.seen.running_requests > 0:
        return Term("awake", 1, "Requests are waiting or running, so 1 replica is needed.")
    if not inputs.snapshot.target:
        return Term("awake", 0, reasons.at_zero(inputs))
    if inputs.idle_s is None:
        return Term("awake", 1, "A request has just ended, or not every replica reports.")
    kept = inputs.idle_s < delay_s
    return Term("awake", int(kept), reasons.awake(delay_s, kept))


def _schedule(inputs: Inputs) -> tuple[Term, ...]:
    """Return the largest minimum of the schedules that are open now or within one start."""
    if not inputs.knobs.schedules:
        return ()
    lead_s = inputs.snapshot.horizon_s
    replicas = scheduled_minimum(inputs.knobs.schedules, inputs.unix_now, lead_s)
    return (Term("schedule", replicas, reasons.schedule(lead_s, replicas)),)


# The clamps.


def _recent_needs(inputs: Inputs, load: tuple[Term, ...], added: tuple[Term, ...]) -> tuple[Need, ...]:
    """Return the needs of the load and of background work in the scale-down window, as falling maxima.

    The present need of the load includes two standard errors, because the measured rate may be too low.
    """
    needed = max(term.replicas for term in load)
    needed = max(needed, inputs.cautious_replicas(inputs.expected_rps)) if needed else 0
    needed = max([needed, *[term.replicas for term in added]])
    start = inputs.now - inputs.scale_down_window_s
    kept = [need for need in inputs.recent_needs if start < need.at <= inputs.now and need.replicas > needed]
    return (*kept, Need(inputs.now, needed))


def _scale_up(inputs: Inputs, wanted: int) -> tuple[int, list[Clamp]]:
    """Return `wanted`, or zero while a burst for a cold model is still arriving.

    A part of the burst would need too few replicas, and later ones would cost a second cold start.
    """
    if not inputs.current and _burst_arrives(inputs) and wanted < inputs.knobs.max_replicas:
        return 0, [Clamp("delay", reasons.burst(COLD_BURST_S))]
    return wanted, []


def _burst_arrives(inputs: Inputs) -> bool:
    """Return whether a burst for a cold model is younger than a second and still growing."""
    seen = inputs.seen
    # The age of the last request decides, not arrivals since the last decision. On a busy node several
    # decisions read the same late report, and only the first would see arrivals.
    grows = seen.oldest_held_s < COLD_BURST_S and seen.newest_held_s < _QUIET_BURST_S
    return seen.held_requests > 0 and grows


def _scale_down(inputs: Inputs, wanted: int, largest: Need) -> tuple[int, list[Clamp]]:
    """Return the least target that the `largest` recent need and the running batch allow."""
    knobs, current, clamps = inputs.knobs, inputs.current, []
    if inputs.silent:
        return current, [Clamp("signals", reasons.silent(engines=inputs.seen.ingress_known))]
    several_s = inputs.scale_down_window_s if current > 1 else 0.0
    if wanted == 0 and (inputs.idle_s or 0.0) >= max(knobs.downscale_to_zero_delay_s, several_s):
        return 0, []
    if inputs.unobserved_s > 0:
        return current, [Clamp("delay", reasons.unobserved(inputs.observed_s, inputs.unobserved_s))]
    floor = max(wanted, min(largest.replicas, current), 1 if wanted == 0 else 0)
    if floor > wanted:
        effect = reasons.scale_down_window(largest, inputs.now, inputs.scale_down_window_s)
        clamps.append(Clamp("delay", effect))
    target = min(floor, current)
    while target < current and not _can_run_batch(inputs, target):
        target += 1
    if target > floor:
        clamps.append(Clamp("batch_limit", reasons.batch_limit(floor, target)))
    return target, clamps


def _can_run_batch(inputs: Inputs, replicas: int) -> bool:
    """Return whether `replicas` can run the present batch within the ITL target and their KV caches."""
    seen, sizing = inputs.seen, inputs.sizing
    if seen.running_requests <= 0:
        return True
    if seen.kv_cache_tokens > 0 and seen.running_tokens > KV_FILL * seen.kv_cache_tokens * replicas:
        return False
    share = 1.0 / replicas
    step_s = sizing.step.decode_s(seen.running_requests * share, seen.running_tokens * share)
    return step_s <= sizing.feasibility.itl_limit_s
