"""The histogram of demand, and the forecast: how far may demand rise while a replica starts? Pure.

The histogram counts requests, as attainment does: which share of the requests arrived at a demand of at most
x? A burst with most of the requests weighs most, even if it was short or long ago.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from serve_app.policy.inputs import Forecast

_RATIO = 1.05
"""The ratio of neighbouring bins: demands are known to 5 %."""
_NEAR = 1.5
"""The ratio of neighbouring bins of the demand before a rise. Demands in one bin or in neighbouring bins
count as similar. With 1.25 replays cost as much, but after a busy hour a fleet changed direction 26 times
instead of 5."""
_ZERO = -10_000
"""The bin of demand 0."""
_FORGOTTEN = 1e-3
"""A bin with fewer requests is dropped. A bound on the share of requests would drop quiet hours."""


@dataclass(frozen=True, slots=True)
class Rises:
    """A fading histogram of the rises of demand within a cold start. A new request weighs 1."""

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
        """The number of windows, weighted: Kish's effective sample size."""
        return self.requests * self.requests / self.squares if self.squares > 0 else 0.0

    def faded(self, fade: float) -> Rises:
        """Return the rises `fade` times as heavy."""
        return Rises(_fade_weights(self.weights, fade), self.requests * fade, self.squares * fade)


@dataclass(frozen=True, slots=True)
class DemandHistogram:
    """A fading histogram of the demands at which requests arrived. A new request weighs 1."""

    levels: Mapping[int, float] = field(default_factory=dict)
    """Weights by the logarithm of demand, in requests per second."""
    rises: Mapping[int, Rises] = field(default_factory=dict)
    """By the logarithm of the demand from which they rose."""

    def note(
        self, before: float | None, level: float, weight: float, around: float, fade: float, window: int
    ) -> DemandHistogram:
        """Return the histogram with one more bucket.

        Args:
            before: The demand one cold start earlier, in requests per second; None if unknown.
            level: The demand around the bucket, in requests per second.
            weight: The requests of the bucket.
            around: The requests of the window around the bucket.
            fade: The factor for older requests.
            window: The number of buckets of that window.
        """
        levels = _fade_weights(self.levels, fade)
        levels[_bin(level)] = levels.get(_bin(level), 0.0) + weight
        rises = {near: each.faded(fade) for near, each in self.rises.items()}
        if before is not None:
            share = 1.0 / window
            near = _near(before)
            new = Rises({_bin(level - before): weight}, around * share, around * around * share)
            rises[near] = _add_rises([rises[near], new]) if near in rises else new
        return DemandHistogram(levels, {near: each for near, each in rises.items() if each.weights})

    def level(self, q: float) -> float:
        """Return the demand at quantile `q` of the requests."""
        return _quantile(self.levels, q)

    @property
    def all_rises(self) -> Rises:
        """The rises from any demand."""
        return _add_rises(self.rises.values())

    def rises_from(self, level: float) -> Rises:
        """Return the rises from a demand similar to `level`, in requests per second."""
        here = _near(level)
        return _add_rises(each for near, each in self.rises.items() if abs(near - here) <= 1)


def forecast(
    histogram: DemandHistogram, level: float, quantile: float, horizon_s: float, window_s: float
) -> Forecast:
    """Return the demand to allow for within a start of `horizon_s` seconds, from `level` requests/s now.

    Demand may rise as far as it rose from similar demands, but not above past demand: both at the quantile q
    of past requests. The probability that none of n windows of `window_s` seconds was above the quantile is
    q^n. With this probability for the windows after similar demands, the rise from any demand counts instead.
    With this probability for all windows, a part of the rise is added.
    """
    q = _quantile_for_start(quantile, horizon_s)
    alike, any_rises = histogram.rises_from(level), histogram.all_rises
    new_here, unsure, most = q**alike.windows, q**any_rises.windows, histogram.level(q)
    rise = (1.0 - new_here) * alike.quantile(q) + new_here * any_rises.quantile(q)
    return Forecast(
        rps=max(level, min(level + rise, most) + unsure * rise),
        quantile=q,
        rise=rise,
        alike=new_here <= 0.5,
        most=most,
        unsure_rps=unsure * rise,
        known_minutes=any_rises.windows * window_s / 60.0,
    )


def _quantile_for_start(quantile: float, horizon_s: float) -> float:
    """Return the share of requests that the forecast covers: the knob's, if a start takes a minute or more.

    A request above the quantile is late by one start, so with shorter starts more requests may be left out.
    The root and the bound were found in replays with starts of 3 and 20 s.
    """
    left_out = 1.0 - quantile
    more = math.sqrt(60.0 / max(horizon_s, 1.0))
    return 1.0 - min(left_out * min(max(more, 1.0), 4.0), 1.0)


def _add_rises(parts: Iterable[Rises]) -> Rises:
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


def _fade_weights(weights: Mapping[int, float], fade: float) -> dict[int, float]:
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
