"""The policy's memory of one engine deployment, by the identity of its replicas.

If another model gets the name, the requests stay the same, so their demand is kept. Step times, the size of
the KV cache and the interference were measured on the former replicas and are not kept.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from math import inf
from typing import Self

from serve_app.learning.state import MixSums, PolicyState

KEPT_IDENTITIES = 4
"""The present identity and the three before: enough for a model, its successor, and a trial of each. A state
without traffic takes about 1 KB."""
FORGOTTEN_AFTER_S = 86_400.0
"""The memory of a removed model is kept for a day, for a rename that is reverted."""
KEPT_REMOVED = 16
"""The number of removed models whose memory is kept, the latest first. Each takes about 10 KB."""

_TRAFFIC = ("demand", "ingress_totals", "last_at")
# Queues and delays in progress, most of them in units of former replicas. `since` is reset, so that no
# replica is removed before the new replicas have been observed for as long as a new policy observes.
_MOMENT = (
    "since", "minute", "ready_mean", "engine_totals", "queue", "recent_needs", "idle_since", "woken_at",
)  # fmt: skip
_FRESH = PolicyState()
# Tokenizers differ by about 20 % in the tokens of a text. The standard deviation of prompt lengths is about
# their mean, so the mean of 25 requests is also exact to 20 %. A former mix counts as 25 requests.
_FORMER_MIX = 25.0


@dataclass(frozen=True, slots=True)
class Memory:
    """A policy's state, the identity of its replicas, and what was learned about earlier replicas."""

    state: PolicyState = field(default_factory=PolicyState)
    identity: str = ""
    """See `serve_app.settings.identity`; empty if unknown."""
    former: tuple[tuple[str, PolicyState], ...] = ()
    """(identity, learned state) of earlier replicas, newest first."""

    def of(self, identity: str) -> tuple[Self, str]:
        """Return the memory for replicas of `identity`, and a message to the operator if it has changed.

        If either identity is unknown, as after an update of Tideserve, the replicas count as the same.
        """
        if not identity or identity == self.identity:
            return self, ""
        if not self.identity:
            return replace(self, identity=identity), ""
        learned = {self.identity: replica_part(self.state), **dict(self.former)}
        replica = learned.pop(identity, None)
        kept = tuple(learned.items())[: KEPT_IDENTITIES - 1]
        known = type(self)(with_replica_part(self.state, replica), identity, kept)
        if replica is None:
            return known, f"The model is now {identity!r}. Nothing learned of {self.identity!r} is used."
        return known, f"The model is {identity!r} again. The figures learned of it are used again."


def drop_forgotten(memories: Mapping[str, Memory], served: Collection[str], now: float) -> dict[str, Memory]:
    """Return `memories` without deployments that have not been `served` for a day.

    At most `KEPT_REMOVED` deployments that are not served stay, the latest. `now` is Unix time in seconds.
    """

    def unserved_s(name: str) -> float:
        last_at = memories[name].state.last_at
        return inf if last_at is None else now - last_at

    removed = sorted(memories.keys() - set(served), key=unserved_s)
    kept = {name for name in removed[:KEPT_REMOVED] if unserved_s(name) < FORGOTTEN_AFTER_S}
    return {name: memory for name, memory in memories.items() if name in served or name in kept}


def replica_part(state: PolicyState) -> PolicyState:
    """Return the part of `state` about the replica, including the request mix in its tokenizer's tokens."""
    return replace(state, **{name: getattr(_FRESH, name) for name in (*_TRAFFIC, *_MOMENT)})


def with_replica_part(state: PolicyState, replica: PolicyState | None) -> PolicyState:
    """Return the traffic part of `state` with the replica part of `replica`; None stands for a fresh state.

    If `replica` has seen no request, the mix of `state` counts as 25 requests.
    """
    found = replica or _FRESH
    sums = found.sums if found.sums.finished else _fade_mix(state.sums)
    traffic = {name: getattr(state, name) for name in _TRAFFIC}
    arrived = {"arrivals": state.sums.arrivals, "bytes": state.sums.bytes}
    return replace(replica_part(found), **traffic, sums=replace(sums, **arrived))


def _fade_mix(sums: MixSums) -> MixSums:
    """Return the same mean request, weighted as 25 requests at most."""
    share = min(1.0, _FORMER_MIX / sums.finished) if sums.finished else 1.0
    return MixSums(**{field.name: getattr(sums, field.name) * share for field in fields(sums)})
