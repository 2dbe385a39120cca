"""What the policy knows of one model at one moment."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from serve_app.wire.signals import EngineSignals, IngressSignals, Reading


@dataclass(frozen=True, slots=True)
class Capacity:
    """The replicas that were asked for and do not run yet."""

    starting: int = 0
    """Replicas whose process runs and is loading."""
    pending: int = 0
    """Replicas that were asked for and that the cluster has no room for yet."""
    pending_s: float = 0.0
    """How long some replica has been pending."""
    reason: str = ""
    """Why, as far as the cluster says."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The replicas of one model and their reports. A replica without a report is absent from the mappings."""

    target: int
    """Replicas asked for at present."""
    ready: int
    """Replicas that take requests."""
    ingress_ready: int = 1
    """Ingress replicas that take requests."""
    engines: Mapping[str, Reading[EngineSignals]] = field(default_factory=dict)
    ingress: Mapping[str, Reading[IngressSignals]] = field(default_factory=dict)
    draining: int = 0
    capacity: Capacity = Capacity()
    cold_start_s: float | None = None
    """Measured: from the start of a replica's process to its readiness; None before the first one."""
    assumed_start_s: float = 60.0
    """The same until it has been measured."""

    @property
    def start_measured(self) -> bool:
        """Whether `cold_start_s` is known."""
        return self.cold_start_s is not None and 0 < self.cold_start_s < inf

    @property
    def horizon_s(self) -> float:
        """How far ahead the policy plans: the time a replica takes to start, measured or assumed."""
        start_s = self.cold_start_s
        return start_s if start_s is not None and self.start_measured else self.assumed_start_s
