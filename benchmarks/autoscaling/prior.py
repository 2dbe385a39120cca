"""The production policy with another prior of the step time."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from loadtests.traces.trace import Trace
from replay.defaults import KNOBS
from replay.production import Production
from replay.profile import Profile
from replay.result import Result
from replay.scenario import scenario
from serve_app.controller.serve_policy import ServePolicy
from serve_app.policy.decide import Decision
from serve_app.policy.snapshot import Snapshot
from serve_app.policy.state import PolicyState
from serve_app.policy.step_time_fit import StepTimeFit
from serve_app.wire.served_models import ServedModel


def scaled_service(factor: float) -> StepTimeFit:
    """The step-time fit before any observation, with every coefficient of its prior times `factor`.

    The prior is held as normal equations with a relative uncertainty: weights go with 1 / value squared, so
    they fall with the square of the factor, and moments, weight times value, with the factor.
    """
    fresh = StepTimeFit()
    return replace(
        fresh,
        gram=tuple(value / factor**2 for value in fresh.gram),
        moment=tuple(value / factor for value in fresh.moment),
    )


@cache
def policy_with_prior(factor: float) -> type[ServePolicy]:
    """`ServePolicy` that begins with a prior wrong by `factor`: 2 takes the hardware for half as fast."""

    class ScaledPrior(ServePolicy):
        """Begins with another prior; learns as usual."""

        def decide(self, model: ServedModel, snapshot: Snapshot, state: PolicyState, now: float) -> Decision:
            """Decide, from the scaled prior the first time."""
            if state.last_at is None:
                state = replace(state, service=scaled_service(factor))
            return super().decide(model, snapshot, state, now)

    return ScaledPrior


def replay_with_prior(trace: Trace, factor: float, profile: Profile, seed: int) -> Result:
    """Replay ours with a scaled prior; with a factor of 1 it is what `replay` returns.

    Raises:
        TraceError: for a line of the trace that is no request.
    """
    asked = scenario(trace, knobs=KNOBS, profile=profile, seed=seed)
    return asked.run(Production(KNOBS, policy_with_prior(factor)), warm=asked.warm())
