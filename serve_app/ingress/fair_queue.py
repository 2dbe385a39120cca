"""The order of waiting requests: lanes first, then fair shares of the keys within a lane. Pure.

The fair share is the virtual token counter (VTC) of Y. Sheng et al., "Fairness in Serving Large Language
Models", OSDI 2024 (arXiv 2401.00588). Each key has a counter of the tokens that it got, divided by its
weight. The key with the least counter goes next. The callers charge only tokens that an engine computes. So a
cached prefix costs its key nothing, as in DLPM (arXiv 2501.14312). DLPM also moves requests with a cached
prefix forward. That lengthens the wait of the others; docs/measurements.md has the figures.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain, count
from typing import Generic, TypeVar

from serve_app.settings.caller import LANES, Caller, Lane

T = TypeVar("T")

_FORMER_ENTRIES = 64
"""A heap has at most so many entries beyond two for each key."""


@dataclass(slots=True, eq=False)
class _Key(Generic[T]):
    """One key's counter and its waiting requests in one lane."""

    served: float = 0.0
    """The tokens that it got, divided by its weight."""
    waiting: dict[T, None] = field(default_factory=dict)
    """In the order of arrival."""
    turn: int = -1
    """The number of its valid entry in the heap."""


class _LaneQueue(Generic[T]):
    """The keys of one lane. Adding and removing a request takes O(log keys)."""

    def __init__(self) -> None:
        self.waiting = 0
        self._keys: dict[str, _Key[T]] = {}
        """Never emptied: the names of keys come from the keys file, which has at most 1,000."""
        self._heap: list[tuple[float, int, _Key[T]]] = []
        """The keys with waiting requests by counter, then by turn. A counter may have grown since, which
        `_least` corrects. Former entries of a key have another turn, and are skipped."""
        self._turns = count()
        self._last: _Key[T] = _Key()
        """The key that had the last request."""

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(list(key.waiting) for key in self._keys.values())

    def add(self, item: T, name: str) -> None:
        key = self._keys.setdefault(name, _Key())
        if not key.waiting:
            # A key that waited for nothing saves up no tokens.
            least = self._least()
            key.served = max(key.served, (self._last if least is None else least).served)
            self._push(key)
        key.waiting[item] = None
        self.waiting += 1

    def remove(self, item: T, name: str) -> None:
        self._last = self._keys[name]
        del self._last.waiting[item]
        self.waiting -= 1

    def charge(self, name: str, share: float) -> None:
        """Add `share` (tokens by weight) to a key's counter; it may be negative."""
        key = self._keys.setdefault(name, _Key())
        key.served += share
        if share < 0 and key.waiting:
            self._push(key)

    def first(self) -> T | None:
        """Return the request that goes next; None if none waits."""
        least = self._least()
        return None if least is None else next(iter(least.waiting))

    def _least(self) -> _Key[T] | None:
        heap = self._heap
        while heap:
            served, turn, key = heap[0]
            if turn != key.turn or not key.waiting:
                heappop(heap)
            elif served < key.served:
                key.turn = next(self._turns)
                heapreplace(heap, (key.served, key.turn, key))
            else:
                return key
        return None

    def _push(self, key: _Key[T]) -> None:
        # Former entries leave only at the top, and a key that waits long keeps its place there.
        if len(self._heap) > 2 * len(self._keys) + _FORMER_ENTRIES:
            self._heap = [(each.served, each.turn, each) for each in self._keys.values() if each.waiting]
            heapify(self._heap)
        key.turn = next(self._turns)
        heappush(self._heap, (key.served, key.turn, key))


class FairQueue(Generic[T]):
    """Waiting requests of all lanes, each with its caller. It holds no time and decides no release.

    The lane `interactive` goes first, then `standard`, then `background`. While requests of the first two
    wait, `standard` gets at least its share of the released tokens, except for the tokens of one request.
    """

    def __init__(self) -> None:
        self._lanes: dict[Lane, _LaneQueue[T]] = {lane: _LaneQueue() for lane in LANES}
        self._owed = 0.0
        """The tokens that `standard` is behind its share; negative if it is ahead."""

    def __len__(self) -> int:
        return sum(lane.waiting for lane in self._lanes.values())

    def __iter__(self) -> Iterator[T]:
        """Yield all requests, by lane."""
        return chain.from_iterable(self._lanes.values())

    def waiting(self, lane: Lane) -> int:
        return self._lanes[lane].waiting

    def add(self, item: T, caller: Caller) -> None:
        """Add a request behind the others of its key and lane. `item` must be hashable and not wait yet."""
        self._lanes[caller.lane].add(item, caller.key)

    def remove(self, item: T, caller: Caller) -> None:
        """Remove a request. Raises KeyError if it does not wait."""
        self._lanes[caller.lane].remove(item, caller.key)

    def first(self) -> T | None:
        """Return the request that goes next; None if none waits."""
        if self._owed > 0 and (owed := self._lanes["standard"].first()) is not None:
            return owed
        return next((item for lane in self._lanes.values() if (item := lane.first()) is not None), None)

    def charge(self, caller: Caller, tokens: float, standard_share: float) -> None:
        """Count a request that has just been released and removed.

        Args:
            tokens: The tokens that an engine will compute for it, as far as they are known.
            standard_share: The least share of the lane `standard`, 0 to 1.
        """
        self.settle(caller, tokens)
        if caller.lane == "interactive":
            self._owed += standard_share * tokens
            if not self.waiting("standard"):
                self._owed = min(self._owed, 0.0)
        elif caller.lane == "standard" and self.waiting("interactive"):
            self._owed -= (1.0 - standard_share) * tokens

    def settle(self, caller: Caller, tokens: float) -> None:
        """Add `tokens` to a key's counter once the true number is known; negative after a high estimate."""
        self._lanes[caller.lane].charge(caller.key, tokens / caller.weight)
