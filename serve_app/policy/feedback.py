"""Feedback: what measured latencies say of the capacity that the model computes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from serve_app.policy.capacity_model import Mix, StepTime, slow_share
from serve_app.policy.observe import Latency, latency
from serve_app.policy.state import PolicyState
from serve_app.settings.knobs import Knobs
from serve_app.wire.signals import EngineSignals

# Latencies are percentiles over the last 30 s: before that long after a change of the fleet they speak
# of the fleet as it was.
_SETTLE_S = 30.0
_FEWEST = 20.0
"""Observations for a percentile to mean something."""
_LOWEST = 0.25
_FALL_PER_S = 0.01
"""At twice the permitted share of misses capacity halves in 70 s; at four times, in 23 s."""
_RISE_PER_S = 1.0 / 1800.0
"""Trust comes back in half an hour: a fleet that has just been enough must not shrink on a lull."""
_REGRET_S = 600.0
"""Misses this soon after a scale-down, under no more load than then, are blamed on it."""
_LATE_REGRET = 1.5
"""Times the permitted share of late tokens. Half a minute's share scatters more than that of waits."""
_REGRET = 0.9
"""What the correction that led to such a scale-down is limited to, as a share of what it was."""
_PROBE_S = 21_600.0
"""How long the limit holds. To try the same fleet again costs a cold start and half a minute of misses."""

_WINDOW_S = 30.0
"""What replicas report latencies of."""
_INTERFERENCE_MEMORY_S = 3600.0
"""It is a property of the traffic and changes with it, over the day."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Latencies of the last 30 s against their targets."""

    ttft_queue: Latency
    ttft_prefill: Latency
    itl: Latency
    ttft_missed: float
    """Share of requests whose wait in an engine's queue alone used up what prefill leaves of the target."""
    itl_missed: float
    ttft_feasible: bool
    """Whether prefill leaves anything of the target at its percentile."""
    itl_feasible: bool


def measure(engines: Sequence[EngineSignals], knobs: Knobs, lowest_itl_s: float) -> Measured:
    """Latencies as reported. `lowest_itl_s` is what a single sequence gets, as learned."""
    queue = latency(engines, "ttft_queue")
    prefill = latency(engines, "ttft_prefill")
    itl = latency(engines, "itl")
    # The median prompt, so that a few long prompts, which nothing helps, do not call off the rest.
    budget = knobs.ttft_target_s - prefill.at(50)
    feasible = budget > 0
    itl_feasible = lowest_itl_s < knobs.itl_target_s
    return Measured(
        queue,
        prefill,
        itl,
        queue.share_above(budget) if feasible else 0.0,
        itl.share_above(knobs.itl_target_s) if itl_feasible else 0.0,
        feasible,
        itl_feasible,
    )


def correct(
    state: PolicyState, measured: Measured, knobs: Knobs, ready: int, target: int, now: float
) -> PolicyState:
    """The state with its capacity correction moved by the latencies since the last decision.

    Times to first token above the permitted share lower it. It rises where the fleet would still miss
    less than half of that share with one replica fewer, misses being in proportion to the load of a
    replica. They are not, close to saturation: what a scale-down has shown to be too much is not tried
    again for hours, or a constant load would see a replica go and come back every five minutes.
    """
    elapsed = _elapsed(state, now)
    settled = (
        state.moved_at is not None and now - state.moved_at >= _SETTLE_S and ready == target and ready > 0
    )
    if not settled or elapsed <= 0 or measured.ttft_queue.count < _FEWEST:
        return state
    permitted = 1.0 - knobs.ttft_percentile / 100.0
    # Late tokens change what a replica is believed to carry, not this correction; but they forget it within
    # the hour, and would try the same fleet again. Once is enough: they are learned from besides.
    if measured.itl_missed > _LATE_REGRET * permitted and not _limited(state, now):
        state = _regret(state, now)
    over = measured.ttft_missed / permitted
    value = state.correction
    if over > 1.1:
        value *= math.exp(-_FALL_PER_S * elapsed * min(over - 1.0, 3.0))
        state = _regret(state, now)
    elif over * ready / max(ready - 1, 1) < 0.5 and ready > 1:
        value *= math.exp(_RISE_PER_S * elapsed)
    highest = state.correction_limit if _limited(state, now) else 1.0
    return replace(state, correction=max(min(value, highest), _LOWEST))


def remember_ready(state: PolicyState, ready: int, now: float) -> PolicyState:
    """The state with the mean of the ready replicas over the time that latencies are reported of."""
    if not ready or state.ready_mean <= 0:
        return replace(state, ready_mean=float(ready))
    keep = math.exp(-_elapsed(state, now) / _WINDOW_S)
    return replace(state, ready_mean=state.ready_mean * keep + ready * (1.0 - keep))


def learn_interference(
    state: PolicyState,
    measured: Measured,
    knobs: Knobs,
    step: StepTime,
    mix: Mix,
    felt_rps: float,
    now: float,
) -> PolicyState:
    """The state with late tokens added, those that came since the last decision and those expected.

    Their ratio is what the model does not know: the spread of prompt lengths, how evenly the ingress
    spreads them, clumps shorter than a bucket. An overloaded replica tells nothing of it: there tokens are
    late because of those that came before.
    """
    elapsed = _elapsed(state, now)
    known = measured.itl_feasible and measured.itl.count >= _FEWEST and state.ready_mean > 0
    if not known or elapsed <= 0:
        return state
    expected = slow_share(step, mix, knobs.itl_target_s, felt_rps / state.ready_mean)
    if expected > 1.0 - knobs.ttft_percentile / 100.0:
        return state
    tokens = measured.itl.count * elapsed / _WINDOW_S
    fade = math.exp(-elapsed / _INTERFERENCE_MEMORY_S)
    return replace(
        state,
        late_tokens=state.late_tokens * fade + tokens * measured.itl_missed,
        late_tokens_expected=state.late_tokens_expected * fade + tokens * expected,
    )


def _elapsed(state: PolicyState, now: float) -> float:
    """Seconds since the last decision; of a long pause only ten were measured by anyone."""
    return 0.0 if state.last_at is None else min(max(now - state.last_at, 0.0), 10.0)


def _limited(state: PolicyState, now: float) -> bool:
    return 0 < state.limited_until - now <= _PROBE_S


def _regret(state: PolicyState, now: float) -> PolicyState:
    """The state with its correction limited, if what is missed comes of the last scale-down."""
    if state.lowered is None:
        return state
    at, correction, rate = state.lowered
    if not 0 <= now - at <= _REGRET_S or state.demand.recent_rps(now) > 1.1 * rate:
        return state
    limit = _REGRET * correction
    if _limited(state, now):
        limit = min(limit, state.correction_limit)
    return replace(state, lowered=None, correction_limit=limit, limited_until=now + _PROBE_S)
