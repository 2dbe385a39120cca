"""The replicas that a pick looks at: all replicas of a small fleet, and the likely best of a large one."""

from collections import deque
from collections.abc import Collection
from itertools import islice

from serve_app.ingress.replica import Replica

ALL = 32
"""A pick looks at all replicas up to this number, which takes 7 µs."""
_EACH = 4
CACHED = 6
"""The most replicas that a pick looks at because they have the prefix, or the adapter, of its request."""


class Candidates:
    """The replicas that can be picked.

    Of a large fleet, a pick looks at five kinds: the least recently used, which have had the most time to
    finish their requests; those that have just finished one; the most recently used, whose prefill groups can
    be joined; the next eight in a row of all replicas, so that no replica is overlooked for long; and those
    that have the prefix or the adapter of the request.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, Replica] = {}
        """The least recently used first. After a replica comes or goes, call `forget`."""
        self._freed = deque[Replica](maxlen=_EACH)
        self._row: list[Replica] = []
        """The replicas that are still to be looked at in this round, the next one last."""
        self._homes: dict[str, dict[Replica, None]] = {}
        """Replicas that have, or had, an adapter, by its name, the least recently picked for it first."""

    def forget(self) -> None:
        """Forget the replicas to look at next, because some may be gone."""
        self._row = []
        self._freed.clear()

    def forget_unlisted(self) -> None:
        """Forget which adapters replicas have that Ray no longer lists."""
        for adapter, homes in list(self._homes.items()):
            self._homes[adapter] = {one: None for one in homes if one.unlisted_at is None}
            if not self._homes[adapter]:
                del self._homes[adapter]

    def note_freed(self, replica: Replica) -> None:
        if self.by_name.get(replica.replica_id) is replica:
            self._freed.append(replica)

    def note_adapter(self, replica: Replica, adapter: str) -> None:
        """Note that `replica` has an adapter, or loads it."""
        homes = self._homes.setdefault(adapter, {})
        homes.pop(replica, None)
        homes[replica] = None

    def with_adapter(self, adapter: str) -> list[Replica]:
        homes = self._homes.get(adapter, {})
        some = list(islice(homes, CACHED))
        for gone in [one for one in some if not one.has_adapter(adapter)]:
            del homes[gone]
        return [one for one in some if one in homes and self.by_name.get(one.replica_id) is one]

    def look(self) -> Collection[Replica]:
        """Return the replicas to look at. One may be there twice."""
        by_name = self.by_name
        if len(by_name) <= ALL:
            return by_name.values()
        if not self._row:
            self._row = list(reversed(by_name.values()))
        row = self._row[: -2 * _EACH - 1 : -1]
        del self._row[-2 * _EACH :]
        newest = islice(reversed(by_name.values()), _EACH)
        return [*islice(by_name.values(), _EACH), *reversed(self._freed), *row, *newest]
