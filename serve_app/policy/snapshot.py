"""The replicas of one model at one moment, and their reports."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from serve_app.wire.signals import EngineSignals, IngressSignals, Reading


@dataclass(frozen=True, slots=True)
class Capacity:
    """The requested replicas that do not run yet."""

    starting: int = 0
    """Replicas whose process is loading."""
    pending: int = 0
    """Replicas for which the cluster has no room yet."""
    pending_s: float = 0.0
    """Seconds for which at least one replica has been pending."""
    reason: str = ""
    """The cluster's reason, if it gives one."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The replicas of one model and their reports. A replica without a report is absent from the mappings."""

    target: int
    """The target in force."""
    ready: int
    """Replicas that take requests."""
    ingress_ready: int = 1
    """Ingress replicas that take requests."""
    engines: Mapping[str, Reading[EngineSignals]] = field(default_factory=dict)
    ingress: Mapping[str, Reading[IngressSignals]] = field(default_factory=dict)
    draining: int = 0
    capacity: Capacity = Capacity()
    warm_node: bool = False
    """Whether a node whose zygote has imported vLLM has room for the next replica."""
    warm_node_start_s: float | None = None
    """Measured seconds from the start of a replica's process to its readiness, on a node with vLLM already
    imported; None before the first such start."""
    cold_node_start_s: float | None = None
    """The same on a node without vLLM imported, such as a new node."""
    assumed_start_s: float = 60.0
    """The assumed seconds of a start until one has been measured."""

    @property
    def cold_start_s(self) -> float | None:
        """The measured start on the next replica's kind of node, or on the other kind; None without any."""
        warm_s, cold_s = _if_measured(self.warm_node_start_s), _if_measured(self.cold_node_start_s)
        return (warm_s or cold_s) if self.warm_node else (cold_s or warm_s)

    @property
    def start_measured(self) -> bool:
        """Whether the measurements say how long the next start takes at most.

        A start on a warm node takes no longer than one on a cold node, but not the other way round.
        """
        known_s = self.cold_start_s if self.warm_node else _if_measured(self.cold_node_start_s)
        return known_s is not None

    @property
    def horizon_s(self) -> float:
        """The policy's planning horizon: the seconds that the next replica takes to start."""
        start_s = self.cold_start_s or 0.0
        return start_s if self.start_measured else max(start_s, self.assumed_start_s)


def _if_measured(start_s: float | None) -> float | None:
    return start_s if start_s is not None and 0 < start_s < inf else None
