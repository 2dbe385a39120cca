"""The production policy with another idea of the hardware to begin with."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from serve_app.autoscaling.policy import Decision
from serve_app.autoscaling.serve_policy import ServePolicy
from serve_app.autoscaling.served import ServedModel
from serve_app.autoscaling.service import ServiceModel
from serve_app.autoscaling.signals import Snapshot
from serve_app.autoscaling.state import PolicyState


def scaled_service(factor: float) -> ServiceModel:
    """The model of one that has seen nothing, with every coefficient of its prior times `factor`.

    The prior is held as normal equations with a relative uncertainty: weights go with 1 / value squared, so
    they fall with the square of the factor, and moments, weight times value, with the factor.
    """
    fresh = ServiceModel()
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
