"""The policy: from the reports about one model to how many replicas it should have, and why.

Pure: no Ray, no clock, no I/O. `decide` may be called at any interval; it is meant for about a second.

    gather: reports -> Inputs    size: -> Needs    limit: -> Limited    explain: -> Explanation
"""

from dataclasses import dataclass, replace

from serve_app.policy.explanation import Explanation
from serve_app.policy.inputs import gather
from serve_app.policy.limits import limit
from serve_app.policy.reasons import explain
from serve_app.policy.snapshot import Snapshot
from serve_app.policy.state import PolicyState
from serve_app.policy.terms import size
from serve_app.settings.knobs import Knobs

_LONGEST_GAP_S = 600.0
"""Between two decisions; far more than a restart of Ray's controller takes."""


@dataclass(frozen=True, slots=True)
class Decision:
    """How many replicas there should be, and why."""

    target: int
    """Replicas to ask for now."""
    wanted: int
    """Replicas that the terms need, within the bounds: the target if there were no delays and no `advise`."""
    state: PolicyState
    """The memory to pass to the next call."""
    explanation: Explanation


def decide(snapshot: Snapshot, knobs: Knobs, state: PolicyState, now: float) -> Decision:
    """Decide for one model at `now`, Unix time in seconds and the only clock.

    `state` is the memory from the last decision; `PolicyState()` at first or after a loss.
    """
    if state.last_at is not None and not 0 <= now - state.last_at <= _LONGEST_GAP_S:
        # Nobody has seen what happened meanwhile: no delay has passed. What was learned is still true.
        state = replace(state, since=None, idle_since=None, woken_at=None, queue=(), peaks=())
    limited = limit(size(gather(snapshot, knobs, state, now)))
    remembered = replace(limited.needs.inputs.state, last_at=now)
    return Decision(limited.target, limited.needs.wanted, remembered, explain(limited))
