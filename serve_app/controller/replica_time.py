"""How long replicas were there, by what they were doing: times their GPUs, what a model costs. Pure."""

from __future__ import annotations

from collections.abc import Mapping

_LONGEST_GAP_S = 10.0
"""As long as a report is believed. What was there in a longer silence nobody knows; a step of the clock,
or a controller that was away for an hour, must not become an hour of GPUs."""


class ReplicaTime:
    """Adds up, between one look at a model's replicas and the next, the time of those that were there."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, Mapping[str, int]]] = {}

    def look(self, model: str, replicas: Mapping[str, int], now: float) -> dict[str, float]:
        """Replica-seconds by state since the last look, which is what it saw times how long ago it was.

        At the first look that is nothing, and more than ten seconds count as ten. `now` is Unix time in
        seconds; where it goes back nothing is counted.
        """
        at, seen = self._last.get(model, (now, {}))
        self._last[model] = (now, replicas)
        elapsed = min(max(0.0, now - at), _LONGEST_GAP_S)
        return {state: count * elapsed for state, count in seen.items() if count and elapsed}
