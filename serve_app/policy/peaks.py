"""What demand has reached and how fast it rose, remembered by requests rather than by time.

Attainment is counted by requests, and so is this memory: which share of the requests arrived at a demand of
at most x? A burst with most of the requests is most of the memory, however short and however long ago it was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

_RATIO = 1.05
"""Demands are remembered to 5 %."""
_PER_LOG = 1.0 / math.log(_RATIO)
_ZERO = -10_000
"""The bin of demand 0."""
_FORGOTTEN = 1e-4
"""A smaller share of the memory is dropped: it changes no quantile that a knob allows."""


def _bin(value: float) -> int:
    return round(math.log(value) * _PER_LOG) if value > 0 else _ZERO


@dataclass(frozen=True, slots=True)
class Peaks:
    """Fading histograms; each request has the weight 1 when it arrives."""

    levels: Mapping[int, float] = field(default_factory=dict)
    """Weights by the logarithm of demand, in requests per second."""
    rises: Mapping[int, float] = field(default_factory=dict)
    """Weights by the logarithm of how much demand rose within a cold start."""
    requests: float = 0.0
    """The sum over minutes of their requests."""
    squares: float = 0.0
    """The sum over minutes of the squares of their requests."""

    def note(
        self, level: float, rise: float, weight: float, minute: float, buckets: int, fade: float
    ) -> Peaks:
        """Return the histograms with the requests of one bucket added.

        Args:
            level: The demand around them, in requests per second.
            rise: The demand around them minus the demand one cold start earlier.
            weight: The requests in the bucket.
            minute: The requests of the minute around the bucket.
            buckets: The buckets in such a minute.
            fade: The factor on older weights.
        """
        share = 1.0 / buckets
        return Peaks(
            _add(self.levels, _bin(level), weight, fade),
            _add(self.rises, _bin(rise), weight, fade),
            self.requests * fade + minute * share,
            self.squares * fade + minute * minute * share,
        )

    def level(self, q: float) -> float:
        """Return the demand that `q` of the requests did not exceed."""
        return _quantile(self.levels, q)

    def rise(self, q: float) -> float:
        """Return the rise within a cold start that `q` of the requests did not exceed; 0 if demand fell."""
        return _quantile(self.rises, q)

    @property
    def minutes(self) -> float:
        """How many minutes of equal weight hold as much information: Kish's effective sample size."""
        return self.requests * self.requests / self.squares if self.squares > 0 else 0.0


def _add(weights: Mapping[int, float], bin_: int, weight: float, fade: float) -> dict[int, float]:
    faded = {key: value * fade for key, value in weights.items()}
    faded[bin_] = faded.get(bin_, 0.0) + weight
    least = _FORGOTTEN * sum(faded.values())
    return {key: value for key, value in faded.items() if value >= least}


def _quantile(weights: Mapping[int, float], q: float) -> float:
    rank = q * sum(weights.values())
    below = 0.0
    bin_ = _ZERO
    for bin_ in sorted(weights):
        below += weights[bin_]
        if below >= rank:
            break
    return float(_RATIO**bin_) if bin_ > _ZERO else 0.0
