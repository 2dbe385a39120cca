"""Idle time that a replay skips: how long decisions about an idle model stay the same."""

from itertools import pairwise

from serve_app.learning.next_decision import apply_starting_values
from serve_app.learning.state import PolicyState
from serve_app.policy.decide import Decision
from serve_app.policy.inputs import Snapshot
from serve_app.settings.knobs import Knobs, scheduled_minimum

_SETTLED_S = 60.0
"""Reported latencies cover 30 s, and rates a minute at most."""
_BEFORE_S = 2.0
"""Steps before the next event are not skipped, so that reports then have their usual age."""
_LONGEST_S = 600.0
"""Longer gaps make the policy forget its delays."""
_MINUTE_S = 60.0


def quiet_until(
    snapshot: Snapshot, knobs: Knobs, state: PolicyState, decision: Decision, now: float, next_event: float
) -> float:
    """Return when to decide next, so that every decision until then would equal `decision`, made `now`.

    The result is `now` unless the model has been idle for a minute with as many replicas as are wanted. Until
    `next_event`, when requests arrive, only three things depend on time. The idle time and the open schedules
    bound the result.
    The minutes that teach headroom go on as they would have: if a minute ends, the answer is such an end.
    """
    snapshot, _ = apply_starting_values(snapshot, knobs, state)
    idle_since, delay_s = state.idle_since, knobs.downscale_to_zero_delay_s
    steady = snapshot.ready == snapshot.target == decision.target == decision.wanted == state.ready_mean
    if idle_since is None or now - idle_since < _SETTLED_S or not steady or snapshot.draining:
        return now
    if state.demand.rate(now, state.demand.window):
        return now
    until = next_event
    if snapshot.target and now - idle_since < delay_s:
        until = min(until, idle_since + delay_s)
    if knobs.schedules:
        until = min(until, _schedule_change(knobs, snapshot.horizon_s, now))
    until = min(until - _BEFORE_S, now + _LONGEST_S)
    last_minute = state.minute.began + (until - state.minute.began) // _MINUTE_S * _MINUTE_S
    return last_minute if last_minute > now else max(until, now)


def _schedule_change(knobs: Knobs, lead_s: float, now: float) -> float:
    """Return when schedules ask for other replicas than now, or the end of the longest time to look at.

    They are looked up for whole minutes from now on, and for the end of a start: what they ask for can change
    when either passes a whole minute.
    """
    early_s = min(lead_s, 3600.0) % _MINUTE_S
    minutes = [(now // _MINUTE_S + ahead) * _MINUTE_S for ahead in range(int(_LONGEST_S / _MINUTE_S) + 3)]
    changes = sorted({at for minute in minutes for at in (minute, minute - early_s) if at > now})
    wanted = scheduled_minimum(knobs.schedules, now, lead_s)
    for begin, end in pairwise(changes):
        if scheduled_minimum(knobs.schedules, (begin + end) / 2, lead_s) != wanted:
            return begin
    return changes[-1]
