"""One turn of the policy: learn from the reports about one model, decide, and remember.

Pure: no Ray, no clock, no I/O. `next_decision` may be called at any interval; it is meant for about a second.
"""

from dataclasses import replace

from serve_app.learning.learn import learn
from serve_app.learning.state import PolicyState
from serve_app.policy.decide import Decision, decide
from serve_app.policy.snapshot import Snapshot
from serve_app.settings.knobs import Knobs

_LONGEST_GAP_S = 600.0
"""Between two decisions; far more than a restart of Ray's controller takes."""


def next_decision(
    snapshot: Snapshot, knobs: Knobs, state: PolicyState, now: float
) -> tuple[Decision, PolicyState]:
    """Return the decision for one model at `now`, Unix time in seconds and the only clock, and the memory.

    `state` is the memory from the last decision; `PolicyState()` at first or after a loss.
    """
    if state.last_at is not None and not 0 <= now - state.last_at <= _LONGEST_GAP_S:
        # Nobody has seen what happened meanwhile: no delay has passed. What was learned is still true.
        state = replace(state, since=None, idle_since=None, woken_at=None, queue=(), peaks=())
    inputs, state = learn(snapshot, knobs, state, now)
    decision = decide(inputs)
    return decision, replace(state, peaks=decision.peaks, last_at=now)
