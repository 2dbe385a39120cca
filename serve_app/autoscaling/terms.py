"""The terms of the policy: each looks at one thing and says how many replicas it calls for."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from serve_app.autoscaling.decision import Term
from serve_app.autoscaling.feedback import Measured
from serve_app.autoscaling.knobs import Knobs
from serve_app.autoscaling.observe import Observation
from serve_app.autoscaling.schedule import scheduled_minimum
from serve_app.autoscaling.service import Mix, StepTime, capacity_rps
from serve_app.autoscaling.signals import Snapshot
from serve_app.autoscaling.state import PolicyState

# Who has waited a cold start does not notice a tenth of it more; clearing the backlog faster would
# take replicas that are idle a second later.
_BACKLOG_SHARE = 0.1
# A burst reaches the ingress over some hundred milliseconds, or a second from a slow client. Its size is
# known only after that; half of it if nobody has come since the last look.
COLD_BURST_S = 1.0
# Reported tokens are instantaneous; one block of the cache is always half full.
_KV_FILL = 0.9
MOST_REPLICAS = 1_000_000


@dataclass(slots=True)
class Sizing:
    """What a replica can carry of this model's requests, as the policy has learned it."""

    step: StepTime
    mix: Mix
    knobs: Knobs
    kv_cache_tokens: float
    interference: float
    correction: float
    headroom: float
    _by_fleet: dict[int, float] = field(default_factory=dict)

    def model_rps(self, replicas: int) -> float:
        """Requests a second of one replica among `replicas`, by the step-time model."""
        # Beyond 64 replicas hardly a request waits any more.
        known = min(max(replicas, 1), 64)
        if known not in self._by_fleet:
            self._by_fleet[known] = capacity_rps(
                self.step, self.mix, self.knobs, self.kv_cache_tokens, self.interference, known
            )
        return self._by_fleet[known]

    def rps(self, replicas: int) -> float:
        """The same, corrected by measured latencies."""
        return self.model_rps(replicas) * self.correction

    def replicas(self, rps: float, *, corrected: bool = True) -> int:
        """The fewest replicas for `rps` requests a second: the load, and headroom in proportion to its root."""
        if rps <= 0:
            return 0
        factor = self.correction if corrected else 1.0
        # A larger fleet carries more a replica: from a large one down to where it no longer suffices.
        count = self._of(rps, self.model_rps(1) * factor)
        while count > 1:
            fewer = self._of(rps, self.model_rps(count) * factor)
            if fewer >= count:
                break
            if self._of(rps, self.model_rps(fewer) * factor) <= fewer:
                count = fewer
                continue
            # Between the two.
            while count - fewer > 1:
                middle = (count + fewer) // 2
                if self._of(rps, self.model_rps(middle) * factor) <= middle:
                    count = middle
                else:
                    fewer = middle
            break
        return count

    def _of(self, rps: float, capacity: float) -> int:
        load = rps / max(capacity, 1e-9)
        return max(1, _whole(load + self.headroom * math.sqrt(load)))

    def most_rps(self, replicas: int) -> float:
        """The inverse of `replicas`: what so many can carry."""
        root = (-self.headroom + math.sqrt(self.headroom**2 + 4.0 * replicas)) / 2
        return root * root * self.rps(replicas)


def _whole(replicas: float) -> int:
    """Rounded up, within reason. A hair below: 3.0000001 replicas of load are rounding, not load."""
    return math.ceil(min(max(replicas, 0.0), MOST_REPLICAS) - 1e-6)


def size(state: PolicyState, knobs: Knobs) -> Sizing:
    """The sizing that follows from what has been learned."""
    return Sizing(
        state.service.step_time(),
        state.sums.mix(),
        knobs,
        state.kv_cache_tokens,
        state.interference,
        state.correction,
        knobs.headroom,
    )


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
    replicas = sizing.replicas(rate.requests, corrected=False)
    per_replica = sizing.model_rps(replicas)
    return Term(
        "arrivals",
        replicas,
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
    """The most the queue may ask for: no bound, or, while replicas are on their way, what has been asked for.

    What piles up meanwhile does so because they are not there yet. Replicas asked for late would come when
    those on their way have cleared it: at 1 request/s and 60 s, 60 requests would have asked for eight
    replicas where one is enough. Arrivals and the forecast go on asking.
    """
    waking = state.woken_at is not None and now - state.woken_at > knobs.upscale_delay_s
    coming = 0 < snapshot.ready < snapshot.target
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
    """Replicas that prefill what waits in a tenth of a cold start, and no more than there are prompts.

    Within the TTFT target would be too late by all of a cold start, whatever the number of replicas.
    """
    requests, tokens = standing_queue(state, seen, snapshot.ready)
    per_token = sizing.step.per_prefill_token_s * sizing.mix.computed_share
    own = per_token * (tokens / requests if requests > 0 else 0.0)
    budget = max(knobs.ttft_target_s, own, _BACKLOG_SHARE * snapshot.horizon_s)
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
    """What demand may come to within a cold start: as much as it has risen, and no more than it has been.

    Both at the quantile of the requests remembered. As long as fewer minutes are remembered than it takes
    to know that quantile, 1 / (1 - q), the most seen is no bound yet, and part of a rise is added.
    """
    q = knobs.forecast_quantile
    peaks = state.demand.peaks
    rise, most = peaks.rise(q), peaks.level(q)
    level = state.demand.felt_rps(now)
    unsure = max(0.0, 1.0 - peaks.minutes * (1.0 - q))
    demand = max(level, min(level + rise, most) + unsure * rise)
    return Term(
        "forecast",
        sizing.replicas(demand),
        f"{demand:.3g} requests/s within {snapshot.horizon_s:.0f} s, a replica's start: now {level:.3g}; "
        f"{q:.0%} of the requests came at no more than {most:.3g} and after a rise of at most {rise:.3g}",
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
    lead = snapshot.horizon_s
    scheduled = scheduled_minimum(knobs.schedules, now, lead)
    if knobs.schedules:
        terms.append(Term("schedule", scheduled, f"windows open now or within {lead:.0f} s"))
    return terms
