"""The policy's memory about the variants of a model: speed, nodes that do not come, and ends. Pure data.

A variant is *dry* if a replica of it has waited for a node for longer than usual, or if its nodes have just
been taken away. Then the mix asks for no more of its replicas. After a while it is tried again, and each try
in vain doubles the while.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from serve_app.policy.step_time_fit import StepTimeFit

_ASSUMED_NODE_S = 180.0
"""The time in which a node comes, until one has come: a cloud takes two to three minutes."""
_SHORTEST_WAIT_S = 15.0
_TIMES_USUAL = 2.0
"""A replica that waits for so many times the usual time gets no node soon."""


class End(NamedTuple):
    """Replicas whose nodes were taken away together."""

    at: float
    replicas: int
    uncovered_s: float
    """How long replacements were missing: a start, less the notice."""


@dataclass(frozen=True, slots=True)
class VariantState:
    """The memory about one variant. The default is an empty memory."""

    identity: str = ""
    fit: StepTimeFit = field(default_factory=StepTimeFit)
    kv_cache_tokens: float = 0.0
    reported_at: Mapping[str, float] = field(default_factory=dict)
    """When each replica wrote its last report, on the policy's clock."""
    node_waits_s: tuple[float, ...] = ()
    """How long the last nodes took to come."""
    pending_s: float = 0.0
    placed: int = 0
    """Replicas with a node at the last decision."""
    try_at: float | None = None
    """When a dry variant is tried again; None if it is not dry."""
    try_wait_s: float = 0.0
    """The wait before the next try; 0 after a node has come."""
    ends: tuple[End, ...] = ()
    leaving: tuple[str, ...] = ()
    """Replicas whose end is known already."""
    since: float | None = None

    def is_dry(self, now: float) -> bool:
        """Whether no more replicas of this variant should be asked for at `now`."""
        return self.try_at is not None and now < self.try_at

    @property
    def usual_wait_s(self) -> float:
        """The time within which a node comes, or never."""
        if not self.node_waits_s:
            return _ASSUMED_NODE_S
        return max(_SHORTEST_WAIT_S, _TIMES_USUAL * median(self.node_waits_s))

    def at_once(self, permitted: float, start_s: float, now: float) -> int:
        """Return how many replicas must be spare, because nodes may be taken away together.

        A fleet with n spare replicas lacks some after each end of more than n, until new ones have started.
        The result is the least n for which that time is at most the share `permitted` of all time. One end of
        one replica is assumed before the first is seen.
        """
        watched_s = max(now - (now if self.since is None else self.since), start_s, 1.0)
        ends = [(end.replicas, end.uncovered_s) for end in self.ends] or [(1, start_s)]
        spare = 0
        while sum(lacking_s for replicas, lacking_s in ends if replicas > spare) > permitted * watched_s:
            spare += 1
        return spare


class Work(NamedTuple):
    """Work that was needed at `at`, in requests per second."""

    at: float
    rps: float


@dataclass(frozen=True, slots=True)
class MixState:
    """What one mix leaves to the next (`variant_mix`)."""

    variants: Mapping[str, VariantState] = field(default_factory=dict)
    goal: Mapping[str, int] = field(default_factory=dict)
    units: int = 0
    """The last decision's target, in replicas of the first variant."""
    recent: tuple[Work, ...] = ()
    """Falling maxima: each entry is the most work since its time."""
    regret_usd: float = 0.0
    """What the present mix has cost more than the best one, since the last move."""
    last_at: float | None = None
