"""Everything that one decision is made from: the reports summed up, and what has been learned from them."""

from dataclasses import dataclass, replace

from serve_app.policy.capacity_model import Feasibility, Sizing, StepTime, feasibility, itl_rps
from serve_app.policy.demand import rise_s
from serve_app.policy.feedback import Measured, learn_interference, measure, remember_ready
from serve_app.policy.headroom import learn_headroom
from serve_app.policy.observe import Observation, observe
from serve_app.policy.snapshot import Snapshot
from serve_app.policy.state import PolicyState, Waiting
from serve_app.policy.step_time_fit import StepTimeFit
from serve_app.settings.knobs import Knobs

_STARTS_HELD = 4.0
_SHORTEST_HOLD_S = 10.0
_LONGEST_HOLD_S = 60.0
"""With starts of 75 s, holds of 90, 180 and 300 s were no better: `benchmarks/autoscaling/tried.md`."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What is reported of one model, the sums over the reports, and what has been learned."""

    snapshot: Snapshot
    knobs: Knobs
    state: PolicyState
    seen: Observation
    measured: Measured
    alone: Feasibility
    """What an empty replica reaches."""
    sizing: Sizing
    now: float
    felt_rps: float
    """Requests per second of the last minute, as its requests felt it; see `demand.felt`."""

    @property
    def current(self) -> int:
        """The target in force, within the bounds."""
        return min(max(self.snapshot.target, self.knobs.min_replicas), self.knobs.max_replicas)

    @property
    def idle_s(self) -> float:
        """Seconds for which the model has been idle; 0 if it is not known to be."""
        since = self.state.idle_since
        return self.now - since if since is not None else 0.0

    @property
    def observed_s(self) -> float:
        """Seconds for which the policy has observed the model since a start or a loss of memory."""
        since = self.state.since
        return self.now - since if since is not None else 0.0

    @property
    def hold_s(self) -> float:
        """Seconds for which fewer replicas must have been enough: `downscale_delay_s`, or four starts.

        A replica that is kept for less than it takes to start one costs less than starting it again. Four
        times as long, because the start is paid in late requests as well.
        """
        given = self.knobs.downscale_delay_s
        starts_s = _STARTS_HELD * self.snapshot.horizon_s
        return given if given is not None else min(max(starts_s, _SHORTEST_HOLD_S), _LONGEST_HOLD_S)

    @property
    def unobserved_s(self) -> float:
        """Seconds for which the policy must still observe the model before it removes a replica.

        A lull of a minute says nothing about traffic that the policy has not observed, and before it has seen
        how much demand rises while a replica starts it cannot tell which replica it will want back.
        """
        rise = rise_s(self.snapshot.horizon_s) if self.knobs.forecast else 0.0
        return max(self.hold_s, self.knobs.downscale_to_zero_delay_s, rise) - self.observed_s

    @property
    def silent(self) -> bool:
        """Whether too few report: an ingress replica does not, or most engine replicas do not.

        Nothing may be removed then. Fewer engine replicas are stood in for by the others: see `observe`.
        """
        return 2 * self.seen.unknown_engines > self.snapshot.ready or not self.seen.ingress_known


def gather(snapshot: Snapshot, knobs: Knobs, state: PolicyState, now: float) -> Inputs:
    """Sum up the reports, learn from them, and return what the decision is made from."""
    snapshot, state = _apply_starting_values(snapshot, knobs, state)
    seen, state = observe(snapshot, state, now, knobs.forecast_window_s)
    starting = snapshot.target and not snapshot.ready
    state = replace(
        state,
        queue=_queue(state, seen, knobs, now) if snapshot.ready else (),
        woken_at=(now if state.woken_at is None else state.woken_at) if starting else None,
    )
    step, mix = state.service.step_time(), state.sums.mix()
    alone = feasibility(step, mix, knobs)
    measured = measure(seen.engines, knobs, alone.itl_limit_s)
    felt_rps = state.demand.felt_rps(now)
    state = remember_ready(state, snapshot.ready, now)
    state = learn_interference(state, measured, knobs, step, mix, felt_rps, now)
    given = knobs.starting_values
    kv_cache_tokens = state.kv_cache_tokens or (given.kv_cache_tokens if given is not None else None) or 0
    sizing = Sizing(step, mix, knobs, itl_rps(step, mix, knobs, kv_cache_tokens, state.interference))
    load = max(state.demand.recent(now)) / sizing.rps(snapshot.ready)
    state = learn_headroom(state, measured, knobs, snapshot.ready, load, snapshot.horizon_s, now)
    sizing = replace(sizing, headroom=knobs.headroom + state.learned_headroom)
    return Inputs(snapshot, knobs, state, seen, measured, alone, sizing, now, felt_rps)


def _apply_starting_values(
    snapshot: Snapshot, knobs: Knobs, state: PolicyState
) -> tuple[Snapshot, PolicyState]:
    """Return both with the values of the knob for what has not been measured.

    A fit that has seen a step stays as it is, whatever the knob is changed to: which part of it comes from
    the old prior cannot be separated any more, and steps tell more than the knob does.
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
    """Return the queue of the last `upscale_delay_s`, and the entry before it, which shows it was observed.

    It is kept only while a replica is ready: otherwise the first replica of a burst would find the whole
    burst standing, and the queue would ask for as many replicas again.
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
