"""The running engine replicas of each deployment, as this process knows them, and the pick among them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

SEQUENCE_TOKENS = 64
"""What one request in flight weighs in a pick, in prompt tokens still to be prefilled.

A prompt token makes one step longer, the one that prefills it; a running sequence every step, for all who
share the batch. By the step time that is assumed of a 7B model on an A100, a sequence of 600 tokens costs
0.12 ms + 600 * 0.12 us = 0.19 ms a step, as much as four prompt tokens of 50 us; 64 is what it costs over
sixteen steps.
"""


@dataclass(slots=True, eq=False)
class Replica:
    """One running engine replica: where its data plane is, and what this process has on it."""

    replica_id: str
    address: str
    token: str
    in_flight: int = 0
    load: int = 0
    """What picks go by: `pending_prompt_tokens + SEQUENCE_TOKENS * in_flight`."""
    failures: int = 0
    """Times since its last good answer that it could not be reached or had no living engine."""

    @property
    def pending_prompt_tokens(self) -> int:
        """Prompt tokens, as estimated, of the requests in flight that nothing has come back of yet."""
        return self.load - SEQUENCE_TOKENS * self.in_flight


@dataclass(slots=True, eq=False)
class Place:
    """One request's place on a replica, from the pick to the request's end there."""

    replica: Replica
    pending_prompt_tokens: int
    """0 once the replica has answered."""
    released: bool = False


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
        """Requests this process has on a replica; 0 for one that is not in the set."""
        replica = self._replicas.get(replica_id)
        return replica.in_flight if replica is not None else 0

    def load(self, replica_id: str) -> int:
        """The load that picks go by (`Replica.load`); 0 for one that is not in the set."""
        replica = self._replicas.get(replica_id)
        return replica.load if replica is not None else 0

    def take(self, limit: int, prompt_tokens: int = 0) -> Place | None:
        """A place on the replica with the least load, of those with fewer than `limit` requests in flight.

        Of equals, the one with the fewest requests; of those, the longest unused. A replica that could
        not be reached comes after every one that could, even if those are full: Ray will drop it, or it
        was us.

        Args:
            limit: Requests of this process that a replica may have.
            prompt_tokens: What the request adds to the load until the replica answers.

        Returns:
            None where there is no replica, or none with room.
        """
        chosen: Replica | None = None
        fewest_failures: float = math.inf
        for replica in self._replicas.values():
            failures = replica.failures
            if failures > fewest_failures:
                continue
            if failures < fewest_failures:
                fewest_failures, chosen = failures, None
            in_flight = replica.in_flight
            if in_flight < limit and (
                chosen is None
                or replica.load < chosen.load
                or (replica.load == chosen.load and in_flight < chosen.in_flight)
            ):
                chosen = replica
        if chosen is None:
            return None
        # To the end of the order, so that equals take turns.
        self._replicas[chosen.replica_id] = self._replicas.pop(chosen.replica_id)
        chosen.in_flight += 1
        chosen.load += prompt_tokens + SEQUENCE_TOKENS
        return Place(chosen, prompt_tokens)

    def answered(self, place: Place) -> None:
        """The first byte of a good answer has come: the prompt is prefilled, and the replica is alive."""
        replica = place.replica
        replica.load -= place.pending_prompt_tokens
        place.pending_prompt_tokens = 0
        if replica.failures:
            replica.failures = 0
            self._changed()

    def release(self, place: Place) -> None:
        """Give a place back, whether its replica is still in the set or not. Once; again is nothing."""
        if place.released:
            return
        place.released = True
        place.replica.in_flight -= 1
        place.replica.load -= place.pending_prompt_tokens + SEQUENCE_TOKENS
        place.pending_prompt_tokens = 0
        self._changed()

    def _changed(self) -> None:
        if self._on_change is not None:
            self._on_change()


_sets: dict[str, ReplicaSet] = {}


def replica_set(deployment: str) -> ReplicaSet:
    """This process's set for `deployment`: one object, shared by its router and its client."""
    return _sets.setdefault(deployment, ReplicaSet())
