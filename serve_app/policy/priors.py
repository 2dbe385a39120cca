"""Where the policy begins: the knob `starting_values` laid under what has not been measured yet. Pure."""

from __future__ import annotations

from dataclasses import replace

from serve_app.policy.capacity_model import ServiceModel, StepTime
from serve_app.policy.state import PolicyState
from serve_app.settings.knobs import Knobs
from serve_app.wire.signals import Snapshot


def begin(snapshot: Snapshot, knobs: Knobs, state: PolicyState) -> tuple[Snapshot, PolicyState]:
    """Both with what the knob says of what nothing has been measured of.

    A fit that has seen a step stays as it is, whatever the knob is changed to: which part of it is the old
    prior's cannot be told any more, and steps tell more than the knob does.
    """
    given = knobs.starting_values
    if given is not None and given.typical_start_s is not None:
        snapshot = replace(snapshot, assumed_start_s=given.typical_start_s)
    wanted = given.coefficients if given is not None else None
    if wanted != state.started_with and not state.service.steps:
        service = ServiceModel.starting_with(StepTime(*wanted)) if wanted is not None else ServiceModel()
        state = replace(state, service=service, started_with=wanted)
    return snapshot, state


def unmeasured(snapshot: Snapshot, knobs: Knobs, state: PolicyState) -> list[str]:
    """What the decision takes from the knob for want of a measurement, a sentence each."""
    given = knobs.starting_values
    if given is None:
        return []
    notes = []
    if not state.service.steps:
        notes.append("starting_values: no step has been measured yet; what a replica carries rests on them")
    if given.cold_start_s is not None and not snapshot.start_measured:
        assumed_s = snapshot.assumed_start_s
        notes.append(f"starting_values: no start has been measured yet; {assumed_s:.3g} s are assumed")
    return notes
