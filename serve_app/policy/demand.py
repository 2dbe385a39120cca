"""Arriving requests: rates, the histogram of demand, and the forecast of a rise while a replica starts. Pure.

The histogram counts requests, as attainment does: which share of the requests arrived at a demand of at most
x? A burst with most of the requests weighs most, even if it was short or long ago.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace

from serve_app.wire.quick_dataclass import quick_dataclass

_RATIO = 1.05
"""The ratio of neighbouring bins: demands are known to 5 %."""
_NEAR = 1.5
"""The ratio of neighbouring bins of the demand before a rise. Demands in one bin or in neighbouring bins
count as similar. With 1.25 replays cost as much, but after a busy hour a fleet changes direction 26 times
instead of 5."""
_ZERO = -10_000
"""The bin of demand 0."""
_FORGOTTEN = 1e-3
"""A bin with fewer requests is dropped. A bound on the share of requests would drop quiet hours."""


@quick_dataclass(frozen=True, slots=True)
class Arrivals:
    """The requests that arrive, per second."""

    rps: float
    """The higher of the rates over the window and over half of the window."""
    over_s: float
    """The seconds over which `rps` was measured."""
    window_s: float
    """The length of the window: about one start."""
    weighted_rps: float
    """The rate over the window, weighted by requests: requests in clumps wait for each other."""
    last_30s_rps: float
    last_60s_rps: float


@quick_dataclass(frozen=True, slots=True)
class Forecast:
    """The demand to allow for until a new replica is ready, in requests per second."""

    rps: float
    quantile: float
    """The quantile of past requests for `rise` and `most`."""
    rise: float
    """The rise of demand at the quantile."""
    alike: bool
    """Whether `rise` is the rise from a similar demand. If not, it is the rise from any demand."""
    most: float
    """The demand at the quantile."""
    unsure_rps: float
    """The part of `rps` that is added because little traffic has been observed."""
    known_minutes: float


@quick_dataclass(frozen=True, slots=True)
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


@quick_dataclass(frozen=True, slots=True)
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
        return _quantile(self.levels, q)

    @property
    def all_rises(self) -> Rises:
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


BUCKET_S = 5.0
MINUTE = 12
"""Buckets per minute."""
_SHORTEST_WINDOW = 2
"""Buckets. With a window of one bucket, steady traffic costs 1 to 2 % more in replays with starts of 3 s."""
LONGEST_HORIZON_S = 900.0
MAX_BUCKETS = int(LONGEST_HORIZON_S / BUCKET_S) + 2 * MINUTE
"""Enough buckets for a rise over the longest cold start."""


@quick_dataclass(frozen=True, slots=True)
class Demand:
    """Arrivals in buckets of five seconds, oldest first, the last one still filling."""

    buckets: tuple[float, ...] = ()
    """The requests of each bucket."""
    start: float | None = None
    """When the last bucket began."""
    until: float = 0.0
    """When arrivals were last counted."""
    histogram: DemandHistogram = field(default_factory=DemandHistogram)
    window: int = MINUTE
    """The buckets of a rate's window; see `window_buckets`."""

    def add(self, now: float, requests: float, horizon_s: float = 60.0, memory_s: float = 7200.0) -> Demand:
        """Return the history with the requests since the last call.

        A rise is measured over `horizon_s`, a cold start. The histogram fades to 1/e in `memory_s` of
        traffic.
        """
        window = window_buckets(horizon_s)
        if self.start is None or now < self.until:
            # First call, or the clock was set back: the times of earlier arrivals are unknown.
            return Demand((requests,), now, now, self.histogram, window)
        passed = max(0, int((now - self.start) // BUCKET_S))
        *before, last = self.buckets
        if passed == 0:
            return replace(self, buckets=(*before, last + requests), until=now, window=window)
        # The arrivals are spread evenly over the buckets since the last call.
        start = self.start + passed * BUCKET_S
        per_s = 1.0 / (now - self.until)
        head = max(0.0, self.start + BUCKET_S - self.until) * per_s
        middle = min(passed - 1, MAX_BUCKETS)
        closed = (*before, last + requests * head, *[requests * (BUCKET_S * per_s)] * middle)
        histogram = _add_to_histogram(self.histogram, closed, 1 + middle, horizon_s, memory_s)
        buckets = (*closed, requests * ((now - start) * per_s))
        return Demand(buckets[-MAX_BUCKETS:], start, now, histogram, window)

    def rate(self, now: float, buckets: int) -> float:
        """Return the requests per second in the last `buckets` whole buckets and the filling one."""
        if self.start is None:
            return 0.0
        return sum(self.buckets[-(buckets + 1) :]) / self._seconds(now, buckets)

    def _seconds(self, now: float, buckets: int) -> float:
        """Return the seconds that `rate` covers."""
        whole = min(len(self.buckets) - 1, buckets) * BUCKET_S
        # Over less than a bucket one request would look like a burst.
        return max(whole + max(now - (self.start or 0.0), 0.0), BUCKET_S)

    def recent(self, now: float) -> tuple[float, float]:
        """Return the rates over half a window and over a whole window."""
        return self.rate(now, self.window // 2), self.rate(now, self.window)

    def arrivals(self, now: float) -> Arrivals:
        short, long = self.recent(now)
        window = self.window if long >= short else self.window // 2
        return Arrivals(
            rps=max(short, long),
            over_s=self._seconds(now, window),
            window_s=self.window * BUCKET_S,
            weighted_rps=self.weighted_rps(now),
            last_30s_rps=self.rate(now, MINUTE // 2),
            last_60s_rps=self.rate(now, MINUTE),
        )

    def weighted_rps(self, now: float) -> float:
        """Return the rate of the last window weighted by requests, at least the mean rate."""
        return max(self.rate(now, self.window), _weighted(self.buckets[-(self.window + 1) :]))


def window_buckets(horizon_s: float) -> int:
    """Return the buckets of a rate's window if a replica starts in `horizon_s` seconds.

    The window is as long as a start, between ten seconds and a minute. A shorter burst is over before a new
    replica is ready. A longer window would delay replicas that come in time.
    """
    return min(max(math.ceil(horizon_s / BUCKET_S), _SHORTEST_WINDOW), MINUTE)


def rise_s(horizon_s: float) -> float:
    """Return the seconds of traffic in which a rise within `horizon_s` can first be seen."""
    window = window_buckets(horizon_s)
    return (window + _ahead(horizon_s, window)) * BUCKET_S


def _ahead(horizon_s: float, window: int) -> int:
    """Return the buckets from the middle of a decision's window until its replicas are ready.

    The time of a start counts as at least one window.
    """
    return int(min(max(horizon_s, window * BUCKET_S), LONGEST_HORIZON_S) / BUCKET_S) + window // 2


def _weighted(counts: Sequence[float]) -> float:
    """Return the weighted rate in requests per second: the mean over requests of their bucket's rate.

    Clumped requests wait for each other's prefill more often than their mean rate says. The mean rate around
    a request is E[rate^2] / E[rate]. With c (c - 1) instead of c^2, a request does not count itself, so that
    the weighted rate of Poisson arrivals equals their mean rate.
    """
    total = sum(counts)
    pairs = sum([count * (count - 1.0) for count in counts if count > 1.0])
    return pairs / total / BUCKET_S if total > 0 else 0.0


def _level(counts: Sequence[float]) -> float:
    """Return the demand in the buckets of one window."""
    return max(sum(counts) / (len(counts) * BUCKET_S), _weighted(counts))


def _add_to_histogram(
    histogram: DemandHistogram, counts: Sequence[float], closed: int, horizon_s: float, memory_s: float
) -> DemandHistogram:
    """Return the histogram with the last `closed` of `counts`, the buckets that have just closed.

    The demand of a bucket is that of the half windows before and after the bucket, so it is known half a
    window later. Time without requests fades nothing, because after a night the policy must still know the
    day.
    """
    window = window_buckets(horizon_s)
    half = window // 2
    ahead = _ahead(horizon_s, window)
    fade = math.exp(-BUCKET_S / memory_s)
    for end in range(max(window, len(counts) - closed + 1), len(counts) + 1):
        weight = counts[end - half]
        if weight <= 0:
            continue
        around = counts[end - window : end]
        level = _level(around)
        # Both windows of a rise must be complete, because a part of a window would look like a lull.
        first = end - window - ahead
        before = _level(counts[first : end - ahead]) if first >= 0 else None
        histogram = histogram.note(before, level, weight, sum(around), fade, window)
    return histogram
