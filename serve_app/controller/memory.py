"""The policy's memory of one engine deployment, by the identity of its replicas.

Another model behind a name gets the same requests, so their demand goes on. How fast a step is, how much
KV cache there is and how far the model of both can be trusted is true of the former replicas only.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from math import inf
from typing import Self

from serve_app.learning.state import MixSums, PolicyState

KEPT_IDENTITIES = 4
"""The present replicas and the three kinds before: enough for a model, its successor, and a trial of each.
A state without traffic is about 1 KB of the document."""
FORGOTTEN_AFTER_S = 86_400.0
"""The memory of a model that is no longer served is kept for a day: for a rename that is taken back."""
KEPT_REMOVED = 16
"""Models that are no longer served and still remembered, the latest: some 10 KB of the document each."""

_TRAFFIC = ("demand", "ingress_totals", "last_at")
# Queues and delays in progress, most of them counted in replicas of the former speed. Without `since`,
# nothing is removed until the new replicas have been observed for as long as a new policy observes.
_MOMENT = (
    "since", "minute", "ready_mean", "engine_totals", "queue", "recent_needs", "idle_since", "woken_at",
)  # fmt: skip
_FRESH = PolicyState()
# Tokenizers count some 20 % more or fewer tokens in a text. Prompts scatter about as much as they are long,
# so the mean of 25 requests is known to 20 %: a former mix is worth as many.
_FORMER_MIX = 25.0


@dataclass(frozen=True, slots=True)
class Memory:
    """A policy's state, the identity of its replicas, and what is known of replicas before them."""

    state: PolicyState = field(default_factory=PolicyState)
    identity: str = ""
    """See `serve_app.settings.identity`; empty while it is not known."""
    former: tuple[tuple[str, PolicyState], ...] = ()
    """(identity, what was learned) of earlier replicas, the newest first."""

    def of(self, identity: str) -> tuple[Self, str]:
        """Return the memory for replicas that are `identity`, and what an operator should know of a change.

        Where either identity is unknown, as after an update of Tideserve, the replicas count as the same.
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
    """Return `memories` without those of deployments that have not been `served` for a day.

    Of others that are not served, the latest `KEPT_REMOVED` stay. `now` is Unix time in seconds.
    """

    def unserved_s(name: str) -> float:
        last_at = memories[name].state.last_at
        return inf if last_at is None else now - last_at

    removed = sorted(memories.keys() - set(served), key=unserved_s)
    kept = {name for name in removed[:KEPT_REMOVED] if unserved_s(name) < FORGOTTEN_AFTER_S}
    return {name: memory for name, memory in memories.items() if name in served or name in kept}


def replica_part(state: PolicyState) -> PolicyState:
    """Return what `state` knows of the replica, with the mix of requests as its tokenizer counts them."""
    return replace(state, **{name: getattr(_FRESH, name) for name in (*_TRAFFIC, *_MOMENT)})


def with_replica_part(state: PolicyState, replica: PolicyState | None) -> PolicyState:
    """Return the traffic that `state` knows with what `replica` knows of the replica; None knows nothing.

    The mix of a `replica` that has seen no request is that of `state`, until 25 requests outweigh it.
    """
    found = replica or _FRESH
    sums = found.sums if found.sums.finished else _fade_mix(state.sums)
    traffic = {name: getattr(state, name) for name in _TRAFFIC}
    arrived = {"arrivals": state.sums.arrivals, "bytes": state.sums.bytes}
    return replace(replica_part(found), **traffic, sums=replace(sums, **arrived))


def _fade_mix(sums: MixSums) -> MixSums:
    """Return the same mean request, known as well as from 25 requests at the most."""
    share = min(1.0, _FORMER_MIX / sums.finished) if sums.finished else 1.0
    return MixSums(**{field.name: getattr(sums, field.name) * share for field in fields(sums)})
