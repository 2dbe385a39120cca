"""How often adapters are used, which decides which of them gives its place to another.

The adapter used least often goes, and not the least recently used. With the latter rule, each adapter that is
asked for once takes the place of a frequent one. `tests/ingress/test_adapter_placement.py` compares both.
"""

from collections import Counter, deque

_USES_PER_PLACE = 100
"""A mean adapter then has 100 counted uses, and its share of all uses is known within 10 %."""


class Uses:
    """Counts the latest uses of adapters on one engine.

    Args:
        places: The number of adapters that stay loaded.
    """

    def __init__(self, places: int) -> None:
        self._latest: deque[str] = deque(maxlen=_USES_PER_PLACE * places)
        self._counts: Counter[str] = Counter()

    def note(self, name: str) -> None:
        """Count one use of the adapter `name`, and forget the oldest use."""
        if len(self._latest) == self._latest.maxlen:
            oldest = self._latest[0]
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]
        self._latest.append(name)
        self._counts[name] += 1

    def of(self, name: str) -> int:
        """Return the counted uses of the adapter `name`."""
        return self._counts[name]
