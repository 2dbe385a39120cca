"""The inputs of a decision about one model: its replicas and their reports, sums, and learned numbers."""

import math
from dataclasses import replace

from serve_app.policy.capacity_model import MOST_REPLICAS, Sizing, StepTime, itl_rps, slow_share
from serve_app.policy.demand import Arrivals, Forecast, forecast, rise_s
from serve_app.policy.reports import Observation, Snapshot, latency, observe
from serve_app.policy.state import BackgroundWork, Minute, Need, PolicyState, Waiting
from serve_app.policy.step_time_fit import StepTimeFit
from serve_app.settings.knobs import Knobs
from serve_app.wire.quick_dataclass import quick_dataclass

_STARTS_IN_WINDOW = 4.0
_SHORTEST_WINDOW_S = 10.0
_LONGEST_WINDOW_S = 60.0
"""With starts of 75 s, windows of 90, 180 and 300 s are no better: `docs/measurements.md`."""
_STANDARD_ERRORS = 2.0
_REPORTED_S = 30.0
"""The time that reported latencies cover."""
_FEWEST = 20.0
"""The least number of observations for a meaningful percentile."""
_INTERFERENCE_MEMORY_S = 3600.0
"""Interference depends on the traffic, which changes over the day."""
_OVERLOADED = 0.05
"""Above this expected share of late tokens nothing is learned, because a backlog makes tokens late."""
_MINUTE_S = 60.0
"""The length of the intervals in which attainment is measured."""
_HEADROOM_STEP = 0.35
"""In units of the square root of the load: with nine replicas, about one replica per missed minute. Of 0.25,
0.35 and 0.5, it is the least step that loses no attainment in a replayed window."""
_MOST_HEADROOM = 2.0
"""In the same units: six more replicas for nine. Nothing is learned from a miss that more headroom than this
would not have prevented, such as a burst on a cold fleet."""


def scale_down_window_s(knobs: Knobs, start_s: float) -> float:
    """Return the scale-down window: `downscale_delay_s`, or four starts within 10 to 60 s.

    Keeping a replica for less than a start costs less than starting it again. The window is four starts,
    because a start also costs late requests.
    """
    given = knobs.downscale_delay_s
    window_s = min(max(_STARTS_IN_WINDOW * start_s, _SHORTEST_WINDOW_S), _LONGEST_WINDOW_S)
    return given if given is not None else window_s


@quick_dataclass(frozen=True, slots=True)
class Inputs:
    """One model at `now`, Unix time in seconds."""

    snapshot: Snapshot
    knobs: Knobs
    now: float
    seen: Observation
    ttft_missed: float
    """Share of requests that waited too long in an engine's queue. The limit is the TTFT target minus the
    prefill, or half a prefill if that is more."""
    itl_missed: float
    """Share of inter-token latencies above `Feasibility.itl_limit_s`."""
    sizing: Sizing
    steps_learned: float
    """The number of steps behind `sizing`; 0 if only a prior is."""
    interference: float
    """Measured late tokens divided by expected late tokens."""
    arrivals: Arrivals
    forecast: Forecast | None
    """None if the knobs switch the forecast off."""
    standing_requests: float
    """The shortest queue within `upscale_delay_s`: requests that the present replicas do not clear."""
    standing_tokens: float
    waking_s: float
    """Seconds for which replicas have been starting with none ready."""
    idle_s: float | None
    """Seconds for which the model has been idle; None if it is not idle."""
    observed_s: float
    """Seconds for which the policy has observed the model since a start or a loss of memory."""
    rise_s: float
    """Seconds of traffic that the forecast needs before it can see a rise; 0 without a forecast."""
    recent_needs: tuple[Need, ...]
    """Falling maxima: each entry is the largest need of the load since its time."""
    background_for_s: float | None = None
    """Seconds for which the lane `background` has had work; None without work. A pause shorter than the
    scale-down window counts as work."""

    @property
    def current(self) -> int:
        """The target in force, within the bounds."""
        return min(max(self.snapshot.target, self.knobs.min_replicas), self.knobs.max_replicas)

    @property
    def background_hours_open(self) -> bool:
        """Whether background work may start or add replicas at this time of the week."""
        hours = self.knobs.background_hours
        return not hours or any(window.covers(self.unix_now) for window in hours)

    @property
    def unix_now(self) -> float:
        return self.now + self.snapshot.clock_ahead_s

    @property
    def background_has_replica(self) -> bool:
        """Whether knobs let background work have a replica of its own, however long the model is idle."""
        knobs = self.knobs
        if self.background_for_s is None or not self.background_hours_open:
            return False
        if not self.snapshot.target:
            return knobs.background_wakes and self.seen.background_requests > 0
        return knobs.background_wakes or knobs.background_backlog_s is not None

    @property
    def expected_rps(self) -> float:
        """The requests per second to size the fleet for."""
        return max(self.arrivals.rps, self.forecast.rps if self.forecast is not None else 0.0)

    @property
    def most_for_queue(self) -> int:
        """The most replicas that a queue may ask for: while replicas start, the present target.

        While replicas start, the queue grows. More replicas would come when the starting ones have cleared
        the queue. At 1 request/s and a start of 60 s, 60 queued requests would ask for eight replicas
        where one is enough. The demand term has no such limit.
        """
        snapshot = self.snapshot
        waking = self.waking_s > self.knobs.upscale_delay_s
        starting = 0 < snapshot.ready < snapshot.target
        return snapshot.target if waking or starting else MOST_REPLICAS

    @property
    def scale_down_window_s(self) -> float:
        return scale_down_window_s(self.knobs, self.snapshot.horizon_s)

    @property
    def unobserved_s(self) -> float:
        """Seconds for which the policy must still observe the model before it removes a replica.

        A short lull says nothing about traffic that the policy has not observed. The policy must first see
        how much demand rises while a replica starts.
        """
        longest_s = max(self.scale_down_window_s, self.knobs.downscale_to_zero_delay_s, self.rise_s)
        return longest_s - self.observed_s

    @property
    def silent(self) -> bool:
        """Whether too many replicas are silent to remove one: an ingress replica, or most engine replicas.

        Fewer silent engine replicas count with the mean load of the others: see `observe`.
        """
        return 2 * self.seen.unknown_engines > self.snapshot.reporters or not self.seen.ingress_known

    def cautious_replicas(self, rps: float) -> int:
        """Return the replicas for `rps` plus two standard errors; a scale-down keeps at least these.

        The standard error of Poisson arrivals is the square root of their number. Without it a steady 12
        requests/s, measured as 11.1 to 12.9, remove and add a replica 22 times an hour.
        """
        error = math.sqrt(self.arrivals.rps / self.arrivals.window_s)
        return self.sizing.replicas(rps + _STANDARD_ERRORS * error)

    def cautious_rps(self, replicas: int) -> float:
        """Return the rate below which `replicas` are enough: the inverse of `cautious_replicas`."""
        half = _STANDARD_ERRORS / 2 / math.sqrt(self.arrivals.window_s)
        root = math.sqrt(self.sizing.most_rps(replicas) + half * half) - half
        return root * root


def learn(snapshot: Snapshot, knobs: Knobs, state: PolicyState, now: float) -> tuple[Inputs, PolicyState]:
    """Return the inputs of a decision at `now`, and the memory updated by the reports."""
    snapshot, state = apply_starting_values(snapshot, knobs, state)
    seen, state = observe(snapshot, state, now, knobs.forecast_window_s)
    starting = snapshot.target and not snapshot.ready
    state = replace(
        state,
        queue=_queue(state, seen, knobs, now) if snapshot.ready else (),
        woken_at=(now if state.woken_at is None else state.woken_at) if starting else None,
        background=_background(state, seen, scale_down_window_s(knobs, snapshot.horizon_s), now),
    )
    step, mix = state.service.step_time(), state.sums.mix()
    sizing = Sizing(step, mix, knobs, itl_rps=0.0)
    # Background sequences lengthen the steps of other lanes' tokens, which must not add replicas. So nothing
    # is learned from late tokens while background requests run.
    judged = replace(seen, itl=latency((), "itl")) if seen.background_running_requests > 0 else seen
    missed = ttft_missed(seen, knobs), judged.itl.share_above(sizing.feasibility.itl_limit_s)
    state = remember_ready(state, snapshot.ready, now)
    state = learn_interference(state, judged, missed[1], sizing, state.demand.weighted_rps(now), now)
    given = knobs.starting_values
    kv_cache_tokens = state.kv_cache_tokens or (given.kv_cache_tokens if given is not None else None) or 0
    sizing = Sizing(step, mix, knobs, itl_rps(step, mix, knobs, kv_cache_tokens, state.interference))
    load = max(state.demand.recent(now)) / max(sizing.rps(snapshot.ready), 1e-9)
    state = learn_headroom(state, judged, missed, knobs, snapshot.ready, load, snapshot.horizon_s, now)
    sizing = replace(sizing, headroom=knobs.headroom + state.learned_headroom)
    return _inputs(snapshot, knobs, state, seen, missed, sizing, now), state


def _inputs(
    snapshot: Snapshot,
    knobs: Knobs,
    state: PolicyState,
    seen: Observation,
    missed: tuple[float, float],
    sizing: Sizing,
    now: float,
) -> Inputs:
    demand, horizon_s = state.demand, snapshot.horizon_s
    arrivals = demand.arrivals(now)
    # Without a ready replica all of the queue counts. Otherwise the shortest recent queue counts, as in
    # CoDel: a burst that the present replicas clear needs no other replica.
    queue = state.queue if snapshot.ready else (Waiting(now, seen.queued_requests, seen.queued_tokens),)
    return Inputs(
        snapshot=snapshot,
        knobs=knobs,
        now=now,
        seen=seen,
        ttft_missed=missed[0],
        itl_missed=missed[1],
        sizing=sizing,
        steps_learned=state.service.steps,
        interference=state.interference,
        arrivals=arrivals,
        forecast=forecast(
            demand.histogram, arrivals.weighted_rps, knobs.forecast_quantile, horizon_s, arrivals.window_s
        )
        if knobs.forecast
        else None,
        standing_requests=min(entry.requests for entry in queue),
        standing_tokens=min(entry.tokens for entry in queue),
        waking_s=_since(state.woken_at, now) or 0.0,
        idle_s=_since(state.idle_since, now),
        observed_s=_since(state.since, now) or 0.0,
        rise_s=rise_s(horizon_s) if knobs.forecast else 0.0,
        recent_needs=state.recent_needs,
        background_for_s=_since(state.background.since, now) if state.background is not None else None,
    )


def _background(
    state: PolicyState, seen: Observation, longest_pause_s: float, now: float
) -> BackgroundWork | None:
    """Return since when the lane `background` has had work, with pauses shorter than `longest_pause_s`."""
    known = state.background
    if known is not None and not 0 <= now - known.last < longest_pause_s:
        known = None
    if seen.background_requests > 0:
        return BackgroundWork(now if known is None else known.since, now)
    return known


def _since(begun: float | None, now: float) -> float | None:
    return None if begun is None else now - begun


def apply_starting_values(
    snapshot: Snapshot, knobs: Knobs, state: PolicyState
) -> tuple[Snapshot, PolicyState]:
    """Return both with the knob's starting values in place of missing measurements.

    After its first step a fit keeps its old prior, even if the knob changes: the prior cannot be separated
    from the steps, and steps say more than the knob.
    """
    given = knobs.starting_values
    if given is not None and given.typical_start_s is not None:
        snapshot = replace(snapshot, assumed_start_s=given.typical_start_s)
    wanted = StepTime(*given.coefficients) if given is not None else None
    if wanted != state.started_with and not state.service.steps:
        service = StepTimeFit.starting_with(wanted) if wanted is not None else StepTimeFit()
        state = replace(state, service=service, started_with=wanted)
    return snapshot, state


def _queue(state: PolicyState, seen: Observation, knobs: Knobs, now: float) -> tuple[Waiting, ...]:
    """Return the queue of the last `upscale_delay_s`, and the entry before, which shows that all was
    observed.

    Kept only while a replica is ready. Otherwise the first replica of a burst would find the whole burst
    standing, and the queue would ask for as many replicas again.
    """
    entries = [entry for entry in state.queue if entry.at <= now]
    start = now - knobs.upscale_delay_s
    older = [entry for entry in entries if entry.at <= start]
    entries = older[-1:] + [entry for entry in entries if entry.at > start]
    if not knobs.upscale_delay_s:
        entries = []
    elif not older and (not entries or entries[0].requests > 0):
        # The queue has not been observed for the whole delay yet, so nothing counts as standing.
        entries.insert(0, Waiting(start, 0.0, 0.0))
    return (*entries, Waiting(now, seen.queued_requests, seen.queued_tokens))


# Feedback from measured latencies to the computed capacity and to the headroom.


def ttft_missed(seen: Observation, knobs: Knobs) -> float:
    """Return the share of requests that waited too long in an engine's queue; see `Inputs.ttft_missed`."""
    # The median prefill, because a few long prompts must not loosen the limit for the other prompts.
    prefill_s = seen.ttft_prefill.at(50)
    return seen.ttft_queue.share_above(max(knobs.ttft_target_s - prefill_s, prefill_s / 2))


def remember_ready(state: PolicyState, ready: int, now: float) -> PolicyState:
    """Return the state with the mean of ready replicas over the time that reported latencies cover."""
    if not ready or state.ready_mean <= 0:
        return replace(state, ready_mean=float(ready))
    keep = math.exp(-state.elapsed_s(now) / _REPORTED_S)
    mean = state.ready_mean * keep + ready * (1.0 - keep)
    # The mean ends exactly at `ready`, so that the state stops changing.
    return replace(state, ready_mean=float(ready) if math.isclose(mean, ready) else mean)


def learn_interference(
    state: PolicyState, seen: Observation, itl_missed: float, sizing: Sizing, rps: float, now: float
) -> PolicyState:
    """Return the state with the measured and the expected late tokens since the last decision.

    Their ratio corrects the model for the spread of prompt lengths, for uneven routing, and for clumps
    shorter than a bucket. An overloaded fleet is left out, because earlier requests make its tokens late.
    """
    elapsed = state.elapsed_s(now)
    if seen.itl.count < _FEWEST or state.ready_mean <= 0 or elapsed <= 0:
        return state
    limit_s = sizing.feasibility.itl_limit_s
    expected = slow_share(sizing.step, sizing.mix, limit_s, rps / state.ready_mean)
    # A ratio below 1 allows higher loads, for which more late tokens are expected. Such fleets must go on
    # learning, or the ratio would never rise again.
    if expected * min(state.interference, 1.0) > _OVERLOADED:
        return state
    tokens = seen.itl.count * elapsed / _REPORTED_S
    fade = math.exp(-elapsed / _INTERFERENCE_MEMORY_S)
    return replace(
        state,
        late_tokens=state.late_tokens * fade + tokens * itl_missed,
        late_tokens_expected=state.late_tokens_expected * fade + tokens * expected,
    )


def learn_headroom(
    state: PolicyState,
    seen: Observation,
    missed: tuple[float, float],
    knobs: Knobs,
    ready: int,
    load: float,
    horizon_s: float,
    now: float,
) -> PolicyState:
    """Return the state with its headroom adjusted at the end of each minute.

    A minute that missed its targets adds `slo_attainment` of a step. Any other minute removes the rest of a
    step: for 99 %, 99 times less. So in equilibrium the share `slo_attainment` of the minutes meets its
    targets. This is adaptive conformal inference (I. Gibbs, E. Candes, NeurIPS 2021) with missed minutes as
    errors.

    Args:
        missed: The shares of requests and of tokens that missed their targets.
        ready: The replicas that serve.
        load: The replicas that the demand of the last minute fills.
        horizon_s: Seconds that a replica takes to start.
        now: Unix time in seconds.
    """
    elapsed = state.elapsed_s(now)
    requests = seen.ttft_queue.count * elapsed / _REPORTED_S
    tokens = seen.itl.count * elapsed / _REPORTED_S
    before = state.minute
    # A replica requested less than one start before the minute's end serves only in the next minute.
    in_time = now - before.began <= _MINUTE_S - horizon_s
    minute = Minute(
        before.began,
        ready if in_time else before.ready,
        before.requests + requests,
        before.late_requests + requests * missed[0],
        before.tokens + tokens,
        before.late_tokens + tokens * missed[1],
    )
    if 0 <= now - minute.began < _MINUTE_S:
        return replace(state, minute=minute)
    headroom = state.learned_headroom
    if minute.requests >= _FEWEST and load <= minute.ready + _MOST_HEADROOM * math.sqrt(minute.ready):
        permitted = 1.0 - knobs.ttft_percentile / 100.0
        late = minute.late_requests > permitted * minute.requests
        late = late or minute.late_tokens > permitted * minute.tokens
        # With a start of three minutes, one error makes three missed minutes.
        step = _HEADROOM_STEP * min(1.0, _MINUTE_S / max(horizon_s, 1.0))
        headroom += step * (knobs.slo_attainment - (0.0 if late else 1.0))
    return replace(state, learned_headroom=min(max(headroom, 0.0), _MOST_HEADROOM), minute=Minute(now, ready))
