"""The law: from what is known of one model to how many replicas it should have, and why. Pure.

Inputs    size: -> Needs    limit: -> Limited    explain: -> Explanation
"""

from dataclasses import dataclass

from serve_app.policy.explanation import Explanation
from serve_app.policy.inputs import Inputs, Need
from serve_app.policy.limits import limit
from serve_app.policy.reasons import explain
from serve_app.policy.terms import size


@dataclass(frozen=True, slots=True)
class Decision:
    """How many replicas there should be, and why."""

    target: int
    """Replicas to ask for now."""
    wanted: int
    """Replicas that the terms need, within the bounds: the target if there were no delays and no `advise`."""
    explanation: Explanation
    peaks: tuple[Need, ...] = ()
    """What the load has needed, for the `Inputs` of the next decision."""


def decide(inputs: Inputs) -> Decision:
    """Decide for one model."""
    limited = limit(size(inputs))
    needs = limited.needs
    return Decision(limited.target, needs.wanted, explain(limited), needs.inputs.peaks)
