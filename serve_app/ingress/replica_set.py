"""The running engine replicas of each deployment, as this process knows them."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from serve_app.ingress.replica_choice import Replica
from serve_app.ingress.slots import Slots


@dataclass(slots=True)
class ReplicaSet(Slots):
    """The running replicas of one deployment. Kept current by `EngineRouter`.

    For the event loop of the ingress alone; Ray's router runs in it too (see `connect`).
    """

    _listed: dict[str, Replica] = field(default_factory=dict)
    """The replicas that Ray says run."""
    _missed: dict[str, Replica] = field(default_factory=dict)
    """Replicas that are gone while requests of this process still are on them."""
    _on_trouble: Callable[[Replica], None] = lambda _: None

    def notify(self, on_change: Callable[[], None]) -> None:
        """Call `on_change`, and nothing else, when replicas may have changed or, if `awaited`, got room."""
        self._on_change = on_change

    def notify_trouble(self, on_trouble: Callable[[Replica], None]) -> None:
        """Call `on_trouble`, and nothing else, whenever requests are kept away from a replica.

        And again when another may take over what is still on it.
        """
        self._on_trouble = on_trouble

    def update(self, metadata: Mapping[str, Mapping[str, str]]) -> None:
        """Replace the set by the metadata of each replica, which `Engine.record_replica_metadata` returns.

        Counts of those that stay are kept. So are those of a replica that is missing once and comes back: it
        would seem to have nothing to do.
        """
        known = {**self._missed, **self._listed}
        self._listed = {
            replica_id: known.get(replica_id)
            or Replica(replica_id, told["address"], told["token"], told.get("identity", ""))
            for replica_id, told in metadata.items()
        }
        self._usable = {name: replica for name, replica in self._listed.items() if not replica.trouble}
        self.prefixes.keep(self._listed)
        self._missed = {
            name: replica for name, replica in known.items() if replica.in_flight and name not in metadata
        }
        for name, replica in known.items():
            if name in metadata:
                replica.unlisted_at = None
            elif replica.unlisted_at is None:
                replica.unlisted_at = self.clock()
        self._changed()

    def listed(self) -> Collection[Replica]:
        """Every replica that Ray says runs, including those that are not picked."""
        return self._listed.values()

    def may_continue(self, identity: str) -> bool:
        """Whether a listed replica serves the model `identity`, or none is listed and the next one may."""
        return not self._listed or any(one.identity == identity for one in self._listed.values())

    def has_substitute(self, replica: Replica) -> bool:
        """Whether another replica is picked that serves the same model as `replica`."""
        return any(one.identity == replica.identity and one is not replica for one in self._usable.values())

    def keep_away(self, replica: Replica, trouble: str) -> None:
        """Do not pick `replica` until it is `welcome` again, and tell of its trouble.

        That of a draining replica with requests is told each time: Ray no longer looks after its health.
        """
        known = self._listed.get(replica.replica_id) or self._missed.get(replica.replica_id)
        if known is not replica:
            return
        begins = not replica.trouble
        replica.trouble = trouble
        self._usable.pop(replica.replica_id, None)
        if begins or replica.unlisted_at is not None:
            self._on_trouble(replica)

    def welcome(self, replica: Replica) -> None:
        """Pick `replica` again, if Ray lists it: its heartbeats tell of no trouble."""
        if replica.trouble:
            replica.trouble = ""
            if replica.replica_id in self._listed:
                self._usable[replica.replica_id] = replica
                self._changed()

    def _changed(self) -> None:
        self._on_change()
        for replica in [*self._listed.values(), *self._missed.values()]:
            if replica.trouble and replica.in_flight:  # there was no other for them when its trouble began
                self._on_trouble(replica)

    def in_flight(self, replica_id: str) -> int:
        """Requests that this process has on a replica; 0 for one that is not in the set."""
        replica = self._usable.get(replica_id)
        return replica.in_flight if replica is not None else 0

    def load(self, replica_id: str) -> int:
        """The load that picks go by (`Replica.load`); 0 for a replica that is not in the set."""
        replica = self._usable.get(replica_id)
        return replica.load if replica is not None else 0


_sets: dict[str, ReplicaSet] = {}


def replica_set(deployment: str) -> ReplicaSet:
    """This process's set for `deployment`: one object, which its router and its client share."""
    return _sets.setdefault(deployment, ReplicaSet())
