"""The running engine replicas of each deployment, as this process knows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Replica:
    """One running engine replica: where its data plane is, and what this process has on it."""

    replica_id: str
    address: str
    token: str
    in_flight: int = 0
    failures: int = 0
    """Times since its last good answer that it could not be reached or had no living engine."""


@dataclass(slots=True)
class ReplicaSet:
    """The running replicas of one deployment. Kept current by `EngineRouter`.

    For the event loop of the ingress alone; Ray's router runs in it too (see `connect`).
    """

    _replicas: dict[str, Replica] = field(default_factory=dict)
    _on_change: Callable[[], None] | None = None

    def notify(self, on_change: Callable[[], None]) -> None:
        """Call `on_change`, and nobody else, whenever a replica may have come, gone or got room."""
        self._on_change = on_change

    def update(self, metadata: Mapping[str, Mapping[str, str]]) -> None:
        """Replace the set: data-plane address and token by replica id. Counts of those that stay are kept."""
        self._replicas = {
            replica_id: self._replicas.get(replica_id)
            or Replica(replica_id, where["address"], where["token"])
            for replica_id, where in metadata.items()
        }
        self._changed()

    def __len__(self) -> int:
        return len(self._replicas)

    def in_flight(self, replica_id: str) -> int:
        """Requests this process has on a replica."""
        replica = self._replicas.get(replica_id)
        return replica.in_flight if replica is not None else 0

    def take(self, limit: int) -> Replica | None:
        """The replica with the fewest requests of this process, with one more counted on it.

        Of equals, the longest unused. One that could not be reached comes after every one that could;
        Ray will drop it, or it was us. None where there is no replica or the one has `limit` requests.
        """
        if not self._replicas:
            return None
        chosen = min(self._replicas.values(), key=lambda replica: (replica.failures, replica.in_flight))
        if chosen.in_flight >= limit:
            return None
        # To the end of the order, so that equals take turns.
        self._replicas[chosen.replica_id] = self._replicas.pop(chosen.replica_id)
        chosen.in_flight += 1
        return chosen

    def release(self, replica: Replica) -> None:
        """Count one request less on a replica that was taken, whether it is still in the set or not."""
        replica.in_flight -= 1
        self._changed()

    def _changed(self) -> None:
        if self._on_change is not None:
            self._on_change()


_sets: dict[str, ReplicaSet] = {}


def replica_set(deployment: str) -> ReplicaSet:
    """This process's set for `deployment`: one object, shared by its router and its client."""
    return _sets.setdefault(deployment, ReplicaSet())
