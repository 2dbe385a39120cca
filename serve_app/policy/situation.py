"""All that one decision rests on."""

from __future__ import annotations

from dataclasses import dataclass

from serve_app.policy.feedback import Measured
from serve_app.policy.observe import Observation
from serve_app.policy.sizing import Sizing
from serve_app.policy.state import PolicyState
from serve_app.settings.knobs import Knobs
from serve_app.wire.signals import Snapshot


@dataclass(frozen=True, slots=True)
class Situation:
    """One model at one moment: what is reported, what it comes to, and what has been learned."""

    snapshot: Snapshot
    knobs: Knobs
    state: PolicyState
    seen: Observation
    measured: Measured
    sizing: Sizing
    now: float
    felt_rps: float
    """Requests a second of the last minute, as its requests felt it."""

    @property
    def idle_s(self) -> float:
        """How long the model has been idle; 0 if it is not known to be."""
        since = self.state.idle_since
        return self.now - since if since is not None else 0.0

    @property
    def watched_s(self) -> float:
        """How long the model has been watched since a start or a loss of memory."""
        since = self.state.since
        return self.now - since if since is not None else 0.0

    @property
    def first_down_s(self) -> float:
        """How long it must have been watched before a replica goes.

        A lull of a minute says nothing of traffic that nobody has watched.
        """
        return max(self.knobs.downscale_delay_s, self.knobs.downscale_to_zero_delay_s)
