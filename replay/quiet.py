"""Idle time that a replay skips: how long decisions about an idle model stay the same."""

from dataclasses import replace
from itertools import pairwise

from serve_app.policy.decide import Decision
from serve_app.policy.demand import rise_s
from serve_app.policy.inputs import apply_starting_values, remember_ready, scale_down_window_s
from serve_app.policy.reports import Snapshot
from serve_app.policy.state import PolicyState
from serve_app.settings.knobs import Knobs, scheduled_minimum

_SETTLED_S = 60.0
"""Reported latencies cover 30 s, and rates a minute at most."""
_BEFORE_S = 2.0
"""Steps before the next event are not skipped, so that reports then have their usual age."""
_LONGEST_LOOK_S = 3600.0
"""The time ahead for which schedules are looked up."""
_MINUTE_S = 60.0


def quiet_until(
    snapshot: Snapshot, knobs: Knobs, state: PolicyState, decision: Decision, now: float, next_event: float
) -> float:
    """Return when to decide next, so that every target until then would equal that of `decision`, made `now`.

    The result is `now` unless the model has been idle for a minute with as many replicas as its target. Until
    `next_event`, when requests arrive, only delays and schedules depend on time. Their ends bound the result.
    The minutes that teach headroom go on as they would have: if a minute ends, the answer is such an end.
    """
    snapshot, _ = apply_starting_values(snapshot, knobs, state)
    steady = snapshot.ready == snapshot.target == decision.target == state.minute.ready
    if state.idle_since is None or now - state.idle_since < _SETTLED_S or not steady or snapshot.draining:
        return now
    if state.background is not None or state.demand.rate(now, state.demand.window):
        return now
    until = min([next_event, *[end for end in _delay_ends(snapshot, knobs, state) if end > now]])
    if knobs.schedules:
        until = min(until, _schedule_change(knobs, snapshot.horizon_s, now))
    until -= _BEFORE_S
    last_minute = state.minute.began + (until - state.minute.began) // _MINUTE_S * _MINUTE_S
    return last_minute if last_minute > now else max(until, now)


def pass_idle_time(state: PolicyState, ready: int, until: float, interval_s: float) -> PolicyState:
    """Return the state after decisions every `interval_s` up to `until` that were as `quiet_until` says."""
    at = until if state.last_at is None else state.last_at
    while at < until and state.ready_mean != ready:
        at += interval_s
        state = replace(remember_ready(state, ready, at), last_at=at)
    return replace(state, last_at=until)


def _delay_ends(snapshot: Snapshot, knobs: Knobs, state: PolicyState) -> list[float]:
    """Return when the delays of an idle model end: of its last replica, of a scale-down, of new memory."""
    idle_since, since = state.idle_since or 0.0, state.since or 0.0
    to_zero_s, window_s = knobs.downscale_to_zero_delay_s, scale_down_window_s(knobs, snapshot.horizon_s)
    observed_s = max(window_s, to_zero_s, rise_s(snapshot.horizon_s) if knobs.forecast else 0.0)
    needs = [need.at + window_s for need in state.recent_needs[:-1]]
    return [idle_since + to_zero_s, idle_since + max(to_zero_s, window_s), since + observed_s, *needs]


def _schedule_change(knobs: Knobs, lead_s: float, now: float) -> float:
    """Return when schedules ask for other replicas than now, or the end of the longest time to look at.

    They are looked up for whole minutes from now on, and for the end of a start: what they ask for can change
    when either passes a whole minute.
    """
    early_s = min(lead_s, 3600.0) % _MINUTE_S
    ahead = range(int(_LONGEST_LOOK_S / _MINUTE_S) + 3)
    minutes = [(now // _MINUTE_S + minute) * _MINUTE_S for minute in ahead]
    changes = sorted({at for minute in minutes for at in (minute, minute - early_s) if at > now})
    wanted = scheduled_minimum(knobs.schedules, now, lead_s)
    for begin, end in pairwise(changes):
        if scheduled_minimum(knobs.schedules, (begin + end) / 2, lead_s) != wanted:
            return begin
    return changes[-1]
