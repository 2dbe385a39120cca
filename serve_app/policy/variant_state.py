"""The policy's memory about the variants of a model: speed, nodes that do not come, and ends. Pure.

A variant is *dry* if a replica of it has waited for a node for longer than usual, or if its nodes have just
been taken away. Then the mix asks for no more of its replicas. After a while it is tried again, and a try in
vain doubles the while, up to two minutes: a replica without a node costs nothing.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import NamedTuple, Self

from serve_app.policy.step_time_fit import StepTimeFit

_ASSUMED_NODE_S = 180.0
"""The time in which a node comes, until one has come: a cloud takes two to three minutes."""
_SHORTEST_WAIT_S = 15.0
_TIMES_USUAL = 2.0
"""A replica that waits for so many times the usual time gets no node soon."""
_FIRST_TRY_S, _LAST_TRY_S = 60.0, 120.0
"""The first and the longest time after which a dry variant is tried again."""
_KEPT_WAITS = 5
_KEPT_ENDS = 50
_MOST_WATCHED_S = 14 * 86_400.0
"""Older ends say little about the present state of a cloud."""


class End(NamedTuple):
    """Replicas whose nodes were taken away together."""

    at: float
    replicas: int
    uncovered_s: float
    """How long replacements were missing: a start, less the time for which the replicas took requests."""


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
    given: bool = False
    """Whether the next place is one that another model gives, and no new node."""
    placed: int = 0
    """Replicas with a node at the last decision."""
    had: int = 0
    """Replicas with a node when the variant ran dry. Asked for one fewer, Ray may stop one with a node, and
    keep one that waits. Then the mix must not leave the variant, nor believe that a node has come."""
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
        # A later time was set by a clock that was ahead.
        return self.try_at is not None and 0.0 < self.try_at - now <= _LAST_TRY_S

    def is_tried(self, now: float) -> bool:
        """Whether the last replica got no node, and it is time to try again."""
        return self.try_wait_s > 0.0 and not self.is_dry(now)

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

    def learn_nodes(
        self, pending: int, pending_s: float, placed: int, now: float, *, given: bool = False
    ) -> Self:
        """Return the memory after a look at the nodes.

        Args:
            pending: Replicas that wait for a node.
            pending_s: For how long.
            placed: Replicas that have one.
            now: Unix time in seconds.
            given: Whether another model gives its place to the replica that waits, so that no node comes.
        """
        state = replace(self, given=self.given or given)
        if placed > max(self.placed, self.had if self.is_dry(now) else 0) and self.since is not None:
            waits = self.node_waits_s if state.given else (*self.node_waits_s, self.pending_s)[-_KEPT_WAITS:]
            state = replace(state, node_waits_s=waits, given=False, try_at=None, try_wait_s=0.0, had=0)
        elif pending and pending_s > max(self.usual_wait_s, self.try_wait_s) and not self.is_dry(now):
            state = replace(state._run_dry(now), had=placed)
        since = now if self.since is None or self.since > now else max(self.since, now - _MOST_WATCHED_S)
        return replace(state, placed=placed, pending_s=pending_s if pending else 0.0, since=since)

    def learn_ends(self, left: Collection[str], start_s: float, serves_s: float, now: float) -> Self:
        """Return the memory after a look at the ends.

        Args:
            left: Replicas whose nodes have been taken away, or will be.
            start_s: How long a replacement takes.
            serves_s: How long the newest of them take requests.
            now: Unix time in seconds.
        """
        new = [replica for replica in left if replica not in self.leaving]
        kept = tuple(end for end in self.ends if now - end.at < _MOST_WATCHED_S)
        if not new:
            return replace(self, ends=kept, leaving=tuple(left))
        end = End(now, len(new), max(0.0, start_s - serves_s))
        if kept and now - kept[-1].at < max(start_s, 1.0):  # its replacements have not started yet
            last = kept[-1]
            end = End(last.at, last.replicas + end.replicas, max(last.uncovered_s, end.uncovered_s))
            kept = kept[:-1]
        return replace(self, ends=(*kept, end)[-_KEPT_ENDS:], leaving=tuple(left), had=0)._run_dry(now)

    def _run_dry(self, now: float) -> Self:
        """Return the memory of a variant that is dry from `now` on."""
        if self.is_dry(now):
            return self
        wait_s = min(max(2 * self.try_wait_s, _FIRST_TRY_S), _LAST_TRY_S)
        return replace(self, try_at=now + wait_s, try_wait_s=wait_s)


class Work(NamedTuple):
    """Work that was needed at `at`, in requests per second."""

    at: float
    rps: float


@dataclass(frozen=True, slots=True)
class VariantMixState:
    """What one mix leaves to the next (`variant_mix`)."""

    variants: Mapping[str, VariantState] = field(default_factory=dict)
    goal: Mapping[str, int] = field(default_factory=dict)
    units: int = 0
    """The last decision's target, in replicas of the first variant."""
    asked: Mapping[str, int] = field(default_factory=dict)
    """The last decision's targets by variant, the first one first."""
    recent: tuple[Work, ...] = ()
    """Falling maxima: each entry is the most work since its time."""
    regret_usd: float = 0.0
    """What the present mix has cost more than the best one, since the last move."""
    last_at: float | None = None
