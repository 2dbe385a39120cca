"""How long replicas existed, by what they were doing. Pure."""

from collections.abc import Container, Mapping

_LONGEST_GAP_S = 10.0
"""As long as a report counts as fresh. Nobody knows which replicas existed during a longer silence: a step of
the clock, or a controller that was away for an hour, must not become an hour of GPUs."""


class ReplicaTime:
    """Adds up how long replicas existed, by what they were doing: times their GPUs, what a model costs."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, Mapping[str, int]]] = {}

    def forget_except(self, models: Container[str]) -> None:
        """Forget all other models."""
        self._last = {name: last for name, last in self._last.items() if name in models}

    def add(self, model: str, replicas: Mapping[str, int], now: float) -> dict[str, float]:
        """Return the replica-seconds by state since the last call: the replicas then, times the time since.

        The first call returns nothing, and more than ten seconds count as ten. `now` is Unix time in
        seconds; if it goes back, nothing is counted.
        """
        at, seen = self._last.get(model, (now, {}))
        self._last[model] = (now, replicas)
        elapsed = min(max(0.0, now - at), _LONGEST_GAP_S)
        return {state: count * elapsed for state, count in seen.items() if count and elapsed}
