"""The terms of the policy: each looks at one thing and says how many replicas it calls for."""

from __future__ import annotations

import math
from dataclasses import dataclass

from serve_app.autoscaling.decision import Term
from serve_app.autoscaling.feedback import Measured
from serve_app.autoscaling.knobs import Knobs
from serve_app.autoscaling.observe import Observation
from serve_app.autoscaling.schedule import scheduled_minimum
from serve_app.autoscaling.service import Mix, StepTime, capacity_rps
from serve_app.autoscaling.signals import Snapshot
from serve_app.autoscaling.state import PolicyState

COLD_START_GUESS_S = 60.0
"""Until a cold start has been measured."""
# Demand is looked back upon over sixteen cold starts: long enough for a peak to have shown itself,
# short enough to forget yesterday's. 75 s, an 8B model on an A100, gives 1,200 s.
_COLD_STARTS_BACK = 16.0
_SHORTEST_WINDOW_S = 60.0
# Who has waited a cold start does not notice a tenth of it more; clearing the backlog faster would
# take replicas that are idle a second later.
_BACKLOG_SHARE = 0.1
# A burst reaches the ingress over some hundred milliseconds, or a second from a slow client. Its size is
# known only after that; half of it if nobody has come since the last look.
COLD_BURST_S = 1.0
# Reported tokens are instantaneous; one block of the cache is always half full.
_KV_FILL = 0.9
X = dict(cap=1.0, corr=True, coming=True, backlog=True, shrink=True, early=True, over=2.0, mem=1200.)
MOST_REPLICAS = 1_000_000


@dataclass(frozen=True, slots=True)
class Sizing:
    """What a replica can carry of this model's requests, as the policy has learned it."""

    step: StepTime
    mix: Mix
    model_rps: float
    """By the step-time model."""
    correction: float
    headroom: float

    @property
    def rps(self) -> float:
        """Requests a second of one replica, corrected by measured latencies."""
        return self.model_rps * self.correction

    def replicas(self, rps: float, *, corrected: bool = True) -> int:
        """Replicas for `rps` requests a second: the load, and headroom in proportion to its root."""
        load = rps / max(self.rps if corrected else self.model_rps, 1e-9)
        if load <= 0:
            return 0
        return max(1, _whole(load + self.headroom * math.sqrt(load)))

    def most_rps(self, replicas: int) -> float:
        """The inverse of `replicas`: what so many can carry."""
        root = (-self.headroom + math.sqrt(self.headroom**2 + 4.0 * replicas)) / 2
        return root * root * self.rps


def horizon_s(snapshot: Snapshot) -> float:
    """How far ahead to look: the time a replica takes to start, or a guess at it."""
    measured = snapshot.cold_start_s
    return measured if measured is not None and 0 < measured < math.inf else COLD_START_GUESS_S


def _whole(replicas: float) -> int:
    """Rounded up, within reason. A hair below: 3.0000001 replicas of load are rounding, not load."""
    return math.ceil(min(max(replicas, 0.0), MOST_REPLICAS) - 1e-6)


def size(state: PolicyState, knobs: Knobs) -> Sizing:
    """The sizing that follows from what has been learned."""
    step, mix = state.service.step_time(), state.sums.mix()
    model = capacity_rps(step, mix, knobs, state.kv_cache_tokens, state.interference)
    return Sizing(step, mix, model, state.correction, knobs.headroom)


def load_terms(
    snapshot: Snapshot,
    knobs: Knobs,
    state: PolicyState,
    seen: Observation,
    measured: Measured,
    sizing: Sizing,
    now: float,
) -> list[Term]:
    """What the load of now and of the recent past calls for."""
    terms = [
        _queue(snapshot, knobs, state, seen, now),
        _queue_tokens(snapshot, knobs, state, seen, sizing, now),
        _arrivals(state, sizing, now),
        _kv_cache(seen),
    ]
    if sizing.correction < 1.0 or measured.ttft_missed or measured.itl_missed:
        terms.append(_feedback(state, knobs, measured, sizing, now))
    if knobs.forecast:
        terms.append(_forecast(snapshot, knobs, state, sizing, now))
    return terms


def _arrivals(state: PolicyState, sizing: Sizing, now: float) -> Term:
    """The arrival rate over what a replica can carry, at the prompt lengths that arrive."""
    short, long = state.demand.recent(now)
    rate = max(short, long, key=lambda r: r.requests)
    per_replica = sizing.model_rps
    return Term(
        "arrivals",
        sizing.replicas(rate.requests, corrected=sizing.correction > 1.0),
        f"{rate.requests:.3g} requests/s arrive ({short.requests:.3g} over 30 s, {long.requests:.3g} over "
        f"60 s); a replica carries {per_replica:.3g}/s",
    )


def _feedback(state: PolicyState, knobs: Knobs, measured: Measured, sizing: Sizing, now: float) -> Term:
    """The same with capacity corrected by the latencies that were measured."""
    rate = max(r.requests for r in state.demand.recent(now))
    missed = max(measured.ttft_missed, measured.itl_missed)
    which = "TTFT" if measured.ttft_missed >= measured.itl_missed else "ITL"
    return Term(
        "ttft" if which == "TTFT" else "itl",
        sizing.replicas(rate),
        f"{100 * missed:.2g} % miss the {which} target for lack of replicas, "
        f"{100 - knobs.ttft_percentile} % may; capacity corrected by {sizing.correction:.2f}",
    )


def standing_queue(state: PolicyState, seen: Observation, ready: int) -> tuple[float, float]:
    """(requests, tokens) that have waited all through the delay: the queue that does not clear by itself.

    The least of the recent past, as CoDel measures a queue: bursts that replicas clear within
    `upscale_delay_s` need no other replica. With none ready nothing clears, and all of it counts.
    """
    if not ready:
        return seen.queued_requests, seen.queued_tokens
    return min(entry[1] for entry in state.queue), min(entry[2] for entry in state.queue)


def _asked_enough(snapshot: Snapshot, knobs: Knobs, state: PolicyState, now: float) -> int:
    """The most the queue may ask for: no bound, or what has been asked for already.

    What is held during a cold start piles up only because no replica is there yet. One asked for late
    would come when those on their way have cleared it: at 1 request/s and 60 s, 60 requests would have
    asked for eight replicas where one is enough. Arrivals and the forecast go on asking.
    """
    waking = state.woken_at is not None and now - state.woken_at > knobs.upscale_delay_s
    coming = snapshot.ready and snapshot.target > snapshot.ready and X['coming']
    return snapshot.target if waking or coming else MOST_REPLICAS


def _queue(snapshot: Snapshot, knobs: Knobs, state: PolicyState, seen: Observation, now: float) -> Term:
    requests, _ = standing_queue(state, seen, snapshot.ready)
    return Term(
        "queue",
        min(_asked_enough(snapshot, knobs, state, now), _whole(requests / knobs.queue_target_per_replica)),
        f"{requests:.0f} requests have been waiting, {knobs.queue_target_per_replica:g} a replica may",
    )


def _queue_tokens(
    snapshot: Snapshot, knobs: Knobs, state: PolicyState, seen: Observation, sizing: Sizing, now: float
) -> Term:
    """Replicas that prefill what waits within the TTFT target, and no more than there are prompts."""
    requests, tokens = standing_queue(state, seen, snapshot.ready)
    per_token = sizing.step.per_prefill_token_s * sizing.mix.computed_share
    own = per_token * (tokens / requests if requests > 0 else 0.0)
    left = max(knobs.ttft_target_s - sizing.step.base_s, 1e-3)
    # Where a prompt's own prefill takes longer than that, the target is out of reach and a queue is only
    # a backlog, as it is after a cold start.
    backlog = not snapshot.ready or own > left or X['backlog']
    budget = max(left, own, _BACKLOG_SHARE * horizon_s(snapshot) if backlog else 0.0)
    work = tokens * per_token
    return Term(
        "queue_tokens",
        min(_asked_enough(snapshot, knobs, state, now), _whole(requests), _whole(work / budget)),
        f"{tokens:.0f} prompt tokens wait, {work:.2g} s of prefill; {budget:.2g} s are left for it",
    )


def _kv_cache(seen: Observation) -> Term:
    """Replicas whose KV caches hold what runs and what waits to run."""
    tokens = seen.running_tokens + seen.waiting_tokens
    if seen.kv_cache_tokens <= 0 or tokens <= 0:
        return Term("kv_cache", 0, "the KV cache is empty")
    room = _KV_FILL * seen.kv_cache_tokens
    return Term(
        "kv_cache",
        max(1, _whole(tokens / room)),
        f"{tokens:.0f} tokens need KV cache, {room:.0f} a replica ({_KV_FILL:.0%} of it)",
    )


def _forecast(snapshot: Snapshot, knobs: Knobs, state: PolicyState, sizing: Sizing, now: float) -> Term:
    horizon = horizon_s(snapshot)
    q = knobs.forecast_quantile
    growth, most, neff = state.demand.growth(q, horizon, knobs.forecast_window_s)
    level = state.demand.recent_rps(now)
    unsure = max(0.0, 1.0 - neff * (1.0 - q)) if X['shrink'] else 0.0
    peak = max(level, min(level + growth, most * X["cap"] + unsure * growth))
    return Term(
        "forecast",
        sizing.replicas(peak, corrected=X['corr']),
        f"{q:.0%} of the requests of the last {knobs.forecast_window_s:.0f} s came with at most {growth:.3g} "
        f"requests/s more than {horizon:.0f} s before, and {most:.3g} requests/s at most; now {level:.3g}",
    )


def standing_terms(
    snapshot: Snapshot, knobs: Knobs, state: PolicyState, seen: Observation, now: float
) -> list[Term]:
    """What is asked for whatever the load: the keep-alive, a wake, schedules."""
    terms = []
    if seen.queued_requests > 0 or seen.running_requests > 0:
        terms.append(Term("wake", 1, "requests are waiting or running"))
    elif snapshot.target > 0:
        idle = now - state.idle_since if state.idle_since is not None else 0.0
        kept = state.idle_since is None or idle < knobs.downscale_to_zero_delay_s
        terms.append(
            Term(
                "keep_alive",
                int(kept),
                f"idle for {idle:.0f} s of {knobs.downscale_to_zero_delay_s:g} s"
                if state.idle_since is not None
                else "not known to be idle",
            )
        )
    lead = horizon_s(snapshot)
    scheduled = scheduled_minimum(knobs.schedules, now, lead)
    if knobs.schedules:
        terms.append(Term("schedule", scheduled, f"windows open now or within {lead:.0f} s"))
    return terms
