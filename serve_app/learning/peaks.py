"""The memory of what demand has reached, and of how far it rose within a cold start from where it was.

Attainment is counted by requests, and so is that memory: which share of the requests arrived at a demand of
at most x? A burst with most of the requests is most of the memory, however short and however long ago it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_RATIO = 1.05
"""Demands are remembered to 5 %."""
_NEAR = 1.5
"""The bins of demands that rises are remembered by; those of a bin and of its neighbours are alike. With 1.25
replays cost as much, but a fleet busy for an hour turned about 26 instead of 5 times after it."""
_ZERO = -10_000
"""The bin of demand 0."""
_FORGOTTEN = 1e-3
"""Requests: what has faded to less is dropped. By its share of all, no quiet hour would be remembered."""


@dataclass(frozen=True, slots=True)
class Rises:
    """How far demand rose within a cold start: a fading histogram, where a request weighs 1 as it arrives."""

    weights: Mapping[int, float]
    """By the logarithm of the rise in requests per second."""
    requests: float
    """The sum over windows of their requests."""
    squares: float
    """The sum over windows of the squares of their requests."""

    def quantile(self, q: float) -> float:
        """Return the rise that `q` of the requests did not exceed, in requests/s; 0 if demand fell."""
        return _quantile(self.weights, q)

    @property
    def windows(self) -> float:
        """How many windows of equal weight hold as much information: Kish's effective sample size."""
        return self.requests * self.requests / self.squares if self.squares > 0 else 0.0

    def faded(self, fade: float) -> Rises:
        """Return them `fade` times as heavy."""
        return Rises(_faded(self.weights, fade), self.requests * fade, self.squares * fade)


@dataclass(frozen=True, slots=True)
class Peaks:
    """What is remembered; each request has the weight 1 when it arrives, and fades as others do."""

    levels: Mapping[int, float] = field(default_factory=dict)
    """Weights by the logarithm of demand, in requests per second."""
    rises: Mapping[int, Rises] = field(default_factory=dict)
    """By the logarithm of the demand from which they rose."""

    def note(
        self, before: float | None, level: float, weight: float, around: float, fade: float, window: int
    ) -> Peaks:
        """Return the memory with the `weight` requests of one bucket added, and older ones times `fade`.

        `level` is the demand around them in requests per second, `before` that of one cold start earlier,
        None where it was not seen, and `around` the requests of the window around the bucket, which has
        `window` buckets.
        """
        levels = _faded(self.levels, fade)
        levels[_bin(level)] = levels.get(_bin(level), 0.0) + weight
        rises = {near: each.faded(fade) for near, each in self.rises.items()}
        if before is not None:
            share = 1.0 / window
            near = _near(before)
            new = Rises({_bin(level - before): weight}, around * share, around * around * share)
            rises[near] = _together([rises[near], new]) if near in rises else new
        return Peaks(levels, {near: each for near, each in rises.items() if each.weights})

    def level(self, q: float) -> float:
        """Return the demand that `q` of the requests did not exceed."""
        return _quantile(self.levels, q)

    @property
    def all_rises(self) -> Rises:
        """From wherever demand rose."""
        return _together(self.rises.values())

    def rises_from(self, level: float) -> Rises:
        """Return those from a demand like `level`, in requests per second."""
        here = _near(level)
        return _together(each for near, each in self.rises.items() if abs(near - here) <= 1)


def _together(parts: Iterable[Rises]) -> Rises:
    weights: dict[int, float] = {}
    requests = squares = 0.0
    for part in parts:
        requests += part.requests
        squares += part.squares
        for bin_, weight in part.weights.items():
            weights[bin_] = weights.get(bin_, 0.0) + weight
    return Rises(weights, requests, squares)


def _near(value: float) -> int:
    return round(math.log(value, _NEAR)) if value > 0 else _ZERO


def _bin(value: float) -> int:
    return round(math.log(value, _RATIO)) if value > 0 else _ZERO


def _faded(weights: Mapping[int, float], fade: float) -> dict[int, float]:
    return {bin_: weight * fade for bin_, weight in weights.items() if weight >= _FORGOTTEN}


def _quantile(weights: Mapping[int, float], q: float) -> float:
    rank = q * sum(weights.values())
    below = 0.0
    bin_ = _ZERO
    for bin_ in sorted(weights):
        below += weights[bin_]
        if below >= rank:
            break
    return float(_RATIO**bin_) if bin_ > _ZERO else 0.0
