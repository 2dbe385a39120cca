"""What the policy remembers of one engine deployment, by what its replicas are."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Self

from serve_app.learning.replica_law import law_of, with_law
from serve_app.learning.state import PolicyState

KEPT_IDENTITIES = 4
"""The present replicas and the three kinds before: enough for a model, its successor, and a trial of each.
A law is about 1 KB of the document."""
FORGOTTEN_AFTER_S = 86_400.0
"""What was learned of a model that is no longer served is kept for a day: for a rename that is taken back."""
KEPT_REMOVED = 16
"""Models that are no longer served and still remembered, the latest: some 10 KB of the document each."""


@dataclass(frozen=True, slots=True)
class Memory:
    """A policy's state, what its replicas were, and the laws of replicas before them."""

    state: PolicyState = field(default_factory=PolicyState)
    identity: str = ""
    """See `serve_app.settings.identity`; empty while it is not known."""
    former: tuple[tuple[str, PolicyState], ...] = ()
    """(identity, law) of earlier replicas, the newest first."""

    def of(self, identity: str) -> tuple[Self, str]:
        """Return the memory for replicas that are `identity`, and what an operator should know of a change.

        Where either identity is unknown, as after an update of Tideserve, the replicas count as the same.
        """
        if not identity or identity == self.identity:
            return self, ""
        if not self.identity:
            return replace(self, identity=identity), ""
        laws = {self.identity: law_of(self.state), **dict(self.former)}
        law = laws.pop(identity, None)
        kept = tuple(laws.items())[: KEPT_IDENTITIES - 1]
        known = type(self)(with_law(self.state, law), identity, kept)
        if law is None:
            return known, f"The model is now {identity!r}. Nothing learned of {self.identity!r} is used."
        return known, f"The model is {identity!r} again. The figures learned of it are used again."


def remembered(memories: Mapping[str, Memory], served: Collection[str], now: float) -> dict[str, Memory]:
    """Return `memories` without those of deployments that have not been `served` for a day.

    Of others that are not served, the latest `KEPT_REMOVED` stay. `now` is Unix time in seconds.
    """

    def unserved_s(name: str) -> float:
        last_at = memories[name].state.last_at
        return inf if last_at is None else now - last_at

    removed = sorted(memories.keys() - set(served), key=unserved_s)
    kept = {name for name in removed[:KEPT_REMOVED] if unserved_s(name) < FORGOTTEN_AFTER_S}
    return {name: memory for name, memory in memories.items() if name in served or name in kept}
