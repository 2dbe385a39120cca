"""Everything that one decision is made from."""

from __future__ import annotations

from dataclasses import dataclass

from serve_app.policy.feedback import Measured
from serve_app.policy.observe import Observation
from serve_app.policy.sizing import Sizing
from serve_app.policy.snapshot import Snapshot
from serve_app.policy.state import PolicyState
from serve_app.settings.knobs import Knobs


@dataclass(frozen=True, slots=True)
class Inputs:
    """What is reported of one model, the sums over the reports, and what has been learned."""

    snapshot: Snapshot
    knobs: Knobs
    state: PolicyState
    seen: Observation
    measured: Measured
    sizing: Sizing
    now: float
    felt_rps: float
    """Requests per second of the last minute, as its requests felt it; see `demand.felt`."""

    @property
    def idle_s(self) -> float:
        """Seconds for which the model has been idle; 0 if it is not known to be."""
        since = self.state.idle_since
        return self.now - since if since is not None else 0.0

    @property
    def observed_s(self) -> float:
        """Seconds for which the policy has observed the model since a start or a loss of memory."""
        since = self.state.since
        return self.now - since if since is not None else 0.0

    @property
    def min_observed_s(self) -> float:
        """Seconds for which the policy must have observed the model before it removes a replica.

        A lull of a minute says nothing about traffic that the policy has not observed.
        """
        return max(self.knobs.downscale_delay_s, self.knobs.downscale_to_zero_delay_s)

    @property
    def silent(self) -> bool:
        """Whether an engine replica or an ingress replica does not report: nothing may be removed then."""
        return bool(self.seen.unknown_engines) or not self.seen.ingress_known
