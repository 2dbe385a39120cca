"""How often adapters are used, which decides which of them gives its place to another.

The adapter used least often goes, and not the least recently used. With the latter rule, each adapter that is
asked for once takes the place of a frequent one. `tests/ingress/test_adapter_placement.py` compares both.
"""

from serve_app.settings.adapters import MOST_ADAPTERS

_HALF_LIFE_USES = 64
"""A use counts half after so many uses for each place. Then a mean adapter has 92 counted uses, and its share
of all uses is known within some 10 %."""


class Uses:
    """Counts the uses of adapters on one engine. Old uses fade.

    Args:
        places: The number of adapters that stay loaded.
    """

    def __init__(self, places: int) -> None:
        self._growth = 2.0 ** (1.0 / (_HALF_LIFE_USES * places))
        self._next = 1.0
        self._counts: dict[str, float] = {}

    def note(self, name: str) -> None:
        """Count one use of the adapter `name`."""
        # Instead of all counts fading, later uses count more.
        self._counts[name] = self._counts.get(name, 0.0) + self._next
        self._next *= self._growth
        if self._next > 1e100:
            self._counts = {name: count / self._next for name, count in self._counts.items()}
            self._next = 1.0
        if len(self._counts) > 2 * MOST_ADAPTERS:
            del self._counts[min(self._counts, key=self._counts.__getitem__)]

    def of(self, name: str) -> float:
        """Return the counted uses of the adapter `name`, in a unit that only compares adapters."""
        return self._counts.get(name, 0.0)
