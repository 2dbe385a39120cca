"""The knob `starting_values` in place of what has not been measured yet. Pure."""

from __future__ import annotations

from dataclasses import replace

from serve_app.policy.capacity_model import StepTime
from serve_app.policy.inputs import Inputs
from serve_app.policy.snapshot import Snapshot
from serve_app.policy.state import PolicyState
from serve_app.policy.step_time_fit import StepTimeFit
from serve_app.settings.knobs import Knobs


def apply_starting_values(
    snapshot: Snapshot, knobs: Knobs, state: PolicyState
) -> tuple[Snapshot, PolicyState]:
    """Return both with the knob's values for what has not been measured.

    A fit that has seen a step stays as it is, whatever the knob is changed to: which part of it comes from
    the old prior cannot be separated any more, and steps tell more than the knob does.
    """
    given = knobs.starting_values
    if given is not None and given.typical_start_s is not None:
        snapshot = replace(snapshot, assumed_start_s=given.typical_start_s)
    wanted = given.coefficients if given is not None else None
    if wanted != state.started_with and not state.service.steps:
        service = StepTimeFit.starting_with(StepTime(*wanted)) if wanted is not None else StepTimeFit()
        state = replace(state, service=service, started_with=wanted)
    return snapshot, state


def assumption_notes(inputs: Inputs) -> list[str]:
    """Return a sentence for each thing that the decision takes from the knob because nothing was measured."""
    given = inputs.knobs.starting_values
    if given is None:
        return []
    notes = []
    if not inputs.state.service.steps:
        notes.append("starting_values: no step has been measured yet; a replica's capacity follows from them")
    if given.cold_start_s is not None and not inputs.snapshot.start_measured:
        assumed_s = inputs.snapshot.assumed_start_s
        notes.append(f"starting_values: no start has been measured yet; {assumed_s:.3g} s are assumed")
    return notes
