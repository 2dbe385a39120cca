"""The inputs of a decision about one model: its replicas and their reports, sums, and learned numbers."""

import math
from dataclasses import dataclass, replace

from serve_app.policy.capacity_model import MOST_REPLICAS, Sizing, StepTime, itl_rps
from serve_app.policy.demand import Arrivals, Forecast, forecast, rise_s
from serve_app.policy.feedback import learn_headroom, learn_interference, remember_ready, ttft_missed
from serve_app.policy.reports import Observation, Snapshot, latency, observe
from serve_app.policy.state import BackgroundWork, Need, PolicyState, Waiting
from serve_app.policy.step_time_fit import StepTimeFit
from serve_app.settings.knobs import Knobs

_STARTS_IN_WINDOW = 4.0
_SHORTEST_WINDOW_S = 10.0
_LONGEST_WINDOW_S = 60.0
"""With starts of 75 s, windows of 90, 180 and 300 s were no better: `docs/measurements.md`."""
_STANDARD_ERRORS = 2.0


def scale_down_window_s(knobs: Knobs, start_s: float) -> float:
    """Return the scale-down window: `downscale_delay_s`, or four starts within 10 to 60 s.

    Keeping a replica for less than a start costs less than starting it again. The window is four starts,
    because a start also costs late requests.
    """
    given = knobs.downscale_delay_s
    window_s = min(max(_STARTS_IN_WINDOW * start_s, _SHORTEST_WINDOW_S), _LONGEST_WINDOW_S)
    return given if given is not None else window_s


@dataclass(frozen=True, slots=True)
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
        """The time of the machine's clock."""
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
        the queue. At 1 request/s and a start of 60 s, 60 queued requests would have asked for eight replicas
        where one is enough. The demand term has no such limit.
        """
        snapshot = self.snapshot
        waking = self.waking_s > self.knobs.upscale_delay_s
        starting = 0 < snapshot.ready < snapshot.target
        return snapshot.target if waking or starting else MOST_REPLICAS

    @property
    def scale_down_window_s(self) -> float:
        """The scale-down window in seconds; see `scale_down_window_s`."""
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
        return 2 * self.seen.unknown_engines > self.snapshot.ready or not self.seen.ingress_known

    def cautious_replicas(self, rps: float) -> int:
        """Return the replicas for `rps` plus two standard errors; a scale-down keeps at least these.

        The standard error of Poisson arrivals is the square root of their number. Without it a steady 12
        requests/s, measured as 11.1 to 12.9, removed and added a replica 22 times an hour.
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
    sizing = replace(sizing, itl_rps=itl_rps(step, mix, knobs, kv_cache_tokens, state.interference))
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
