"""What demand has reached and how fast it rose, remembered by requests rather than by time.

Attainment is counted by requests. So is this memory: of the requests that came, which share found a
demand of at most so much? A burst that carries most of the requests is most of the memory, however
short it was and however long ago the last one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

_RATIO = 1.05
"""Demands are remembered to 5 %."""
_PER_LOG = 1.0 / math.log(_RATIO)
_NOTHING = -10_000
"""The place of 0."""
_FORGOTTEN = 1e-4
"""A share of the memory so small is dropped: no quantile that a knob allows can tell."""


def _place(value: float) -> int:
    return round(math.log(value) * _PER_LOG) if value > 0 else _NOTHING


@dataclass(frozen=True, slots=True)
class Peaks:
    """Fading histograms; each request weighs 1 when it comes."""

    levels: Mapping[int, float] = field(default_factory=dict)
    """Demand, requests a second, by its logarithm."""
    rises: Mapping[int, float] = field(default_factory=dict)
    """How much of it had come within a cold start."""
    requests: float = 0.0
    squares: float = 0.0
    """Sums over minutes of their requests, and of the squares of that."""

    def note(
        self, level: float, rise: float, weight: float, minute: float, buckets: int, fade: float
    ) -> Peaks:
        """With the requests of one bucket added.

        Args:
            level: Demand around them, requests a second.
            rise: What it exceeded the demand of a cold start before by.
            weight: How many they were.
            minute: Requests of the minute around them.
            buckets: How many buckets share such a minute.
            fade: What older weights are multiplied by.
        """
        share = 1.0 / buckets
        return Peaks(
            _add(self.levels, _place(level), weight, fade),
            _add(self.rises, _place(rise), weight, fade),
            self.requests * fade + minute * share,
            self.squares * fade + minute * minute * share,
        )

    def level(self, q: float) -> float:
        """The demand that `q` of the requests did not exceed."""
        return _quantile(self.levels, q)

    def rise(self, q: float) -> float:
        """The rise within a cold start that `q` of the requests did not exceed; 0 if they fell."""
        return _quantile(self.rises, q)

    @property
    def minutes(self) -> float:
        """How many minutes of equal weight tell as much: Kish's effective sample size."""
        return self.requests * self.requests / self.squares if self.squares > 0 else 0.0


def _add(weights: Mapping[int, float], place: int, weight: float, fade: float) -> dict[int, float]:
    faded = {key: value * fade for key, value in weights.items()}
    faded[place] = faded.get(place, 0.0) + weight
    least = _FORGOTTEN * sum(faded.values())
    return {key: value for key, value in faded.items() if value >= least}


def _quantile(weights: Mapping[int, float], q: float) -> float:
    rank = q * sum(weights.values())
    below = 0.0
    place = _NOTHING
    for place in sorted(weights):
        below += weights[place]
        if below >= rank:
            break
    return float(_RATIO**place) if place > _NOTHING else 0.0
