"""The margin is learned: minutes that miss their targets add to the headroom, others take from it."""

import math
from dataclasses import replace

from serve_app.learning.feedback import FEWEST, REPORTED_S
from serve_app.learning.state import Minute, PolicyState
from serve_app.policy.measured import Measured
from serve_app.settings.knobs import Knobs

_MINUTE_S = 60.0
"""As long as the minutes by which attainment is judged."""
_STEP = 0.35
"""In units of the square root of the load: with nine replicas, one for a missed minute. Of 0.25, 0.35 and 0.5
it is the least with which no replayed window attains less than with the headroom of before."""
_MOST = 2.0
"""With nine replicas six more. What that would not have prevented, such as a burst on a cold fleet, teaches
nothing."""


def learn_headroom(
    state: PolicyState,
    measured: Measured,
    knobs: Knobs,
    ready: int,
    load: float,
    horizon_s: float,
    now: float,
) -> PolicyState:
    """Return the state with its headroom moved at the end of each minute, by whether that met its targets.

    A missed minute adds a step times `slo_attainment`; any other takes the rest of a step away, 99 times as
    slowly for 99 %. So the headroom rests where that share of the minutes meets its targets: adaptive
    conformal inference (I. Gibbs, E. Candes, NeurIPS 2021), whose error is a missed minute. `ready` are the
    replicas that serve, `load` is how many the demand of the last minute would fill, and `horizon_s` how long
    one takes to start.
    """
    elapsed = state.elapsed_s(now)
    requests = measured.ttft_queue.count * elapsed / REPORTED_S
    tokens = measured.itl.count * elapsed / REPORTED_S
    seen = state.minute
    # A replica that was asked for later than one start before the end serves in the next minute only.
    in_time = now - seen.began <= _MINUTE_S - horizon_s
    minute = Minute(
        seen.began,
        ready if in_time else seen.ready,
        seen.requests + requests,
        seen.late_requests + requests * measured.ttft_missed,
        seen.tokens + tokens,
        seen.late_tokens + tokens * measured.itl_missed,
    )
    if 0 <= now - minute.began < _MINUTE_S:
        return replace(state, minute=minute)
    headroom = state.learned_headroom
    if minute.requests >= FEWEST and load <= minute.ready + _MOST * math.sqrt(minute.ready):
        permitted = 1.0 - knobs.ttft_percentile / 100.0
        late = minute.late_requests > permitted * minute.requests
        missed = late or minute.late_tokens > permitted * minute.tokens
        # A start of three minutes makes three missed minutes of one error.
        step = _STEP * min(1.0, _MINUTE_S / max(horizon_s, 1.0))
        headroom += step * (knobs.slo_attainment - (0.0 if missed else 1.0))
    return replace(state, learned_headroom=min(max(headroom, 0.0), _MOST), minute=Minute(now, ready))
