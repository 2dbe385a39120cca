"""How many requests arrive: rates over at most the last minute, and the memory of what demand has reached.

Attainment is counted by requests, and so is that memory: which share of the requests arrived at a demand of
at most x? A burst with most of the requests is most of the memory, however short and however long ago it was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

BUCKET_S = 5.0
MINUTE = 12
"""Buckets."""
_SHORTEST_WINDOW = 2
"""Buckets: with one, steady traffic cost 1 to 2 % more in replays with starts of 3 s."""
LONGEST_HORIZON_S = 900.0
MAX_BUCKETS = int(LONGEST_HORIZON_S / BUCKET_S) + 2 * MINUTE
"""As many as a rise over the longest cold start needs."""
_RATIO = 1.05
"""Demands are remembered to 5 %."""
_PER_LOG = 1.0 / math.log(_RATIO)
_ZERO = -10_000
"""The bin of demand 0."""
_FORGOTTEN = 1e-4
"""A smaller share of the memory is dropped: it changes no quantile that a knob allows."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """Fading histograms; each request has the weight 1 when it arrives."""

    levels: Mapping[int, float] = field(default_factory=dict)
    """Weights by the logarithm of demand, in requests per second."""
    rises: Mapping[int, float] = field(default_factory=dict)
    """Weights by the logarithm of how much demand rose within a cold start."""
    requests: float = 0.0
    """The sum over windows of their requests."""
    squares: float = 0.0
    """The sum over windows of the squares of their requests."""

    def note(
        self, level: float, rise: float, weight: float, around: float, fade: float, window: int = MINUTE
    ) -> Peaks:
        """Return the histograms with the `weight` requests of one bucket added, and older ones times `fade`.

        `level` is the demand around them in requests per second, `rise` that minus the demand one cold start
        earlier, and `around` the requests of the window around the bucket, which has `window` buckets.
        """
        share = 1.0 / window
        return Peaks(
            _add(self.levels, _bin(level), weight, fade),
            _add(self.rises, _bin(rise), weight, fade),
            self.requests * fade + around * share,
            self.squares * fade + around * around * share,
        )

    def level(self, q: float) -> float:
        """Return the demand that `q` of the requests did not exceed."""
        return _quantile(self.levels, q)

    def rise(self, q: float) -> float:
        """Return the rise within a cold start that `q` of the requests did not exceed; 0 if demand fell."""
        return _quantile(self.rises, q)

    @property
    def windows(self) -> float:
        """How many windows of equal weight hold as much information: Kish's effective sample size."""
        return self.requests * self.requests / self.squares if self.squares > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Demand:
    """Arrivals in buckets of five seconds, oldest first, the last one still filling."""

    buckets: tuple[float, ...] = ()
    """The requests of each bucket."""
    start: float | None = None
    """When the last bucket began."""
    until: float = 0.0
    """The time until which arrivals have been counted."""
    peaks: Peaks = field(default_factory=Peaks)
    window: int = MINUTE
    """The buckets over which a rate is read; see `window_buckets`."""

    def add(self, now: float, requests: float, horizon_s: float = 60.0, memory_s: float = 7200.0) -> Demand:
        """Return the history with the requests since the last call; time that has passed closes buckets.

        `horizon_s` is the time over which a rise is measured, a cold start; within `memory_s` of traffic the
        memory of peaks fades to 1/e.
        """
        window = window_buckets(horizon_s)
        if self.start is None or now < self.until:
            # The first call, or a clock set back: the time of earlier arrivals is unknown.
            return Demand((requests,), now, now, self.peaks, window)
        passed = max(0, int((now - self.start) // BUCKET_S))
        *before, last = self.buckets
        if passed == 0:
            return replace(self, buckets=(*before, last + requests), until=now, window=window)
        # The arrivals belong to several buckets, so they are spread evenly over them.
        start = self.start + passed * BUCKET_S
        per_s = 1.0 / (now - self.until)
        head = max(0.0, self.start + BUCKET_S - self.until) * per_s
        middle = min(passed - 1, MAX_BUCKETS)
        closed = (*before, last + requests * head, *[requests * (BUCKET_S * per_s)] * middle)
        peaks = _remember(self.peaks, closed, 1 + middle, horizon_s, memory_s)
        buckets = (*closed, requests * ((now - start) * per_s))
        return Demand(buckets[-MAX_BUCKETS:], start, now, peaks, window)

    def rate(self, now: float, buckets: int) -> float:
        """Return the requests per second in the last `buckets` whole buckets and the one that is filling."""
        if self.start is None:
            return 0.0
        seen = self.buckets[-(buckets + 1) :]
        seconds = (len(seen) - 1) * BUCKET_S + max(now - self.start, 0.0)
        # Over less than a bucket one request would look like a burst.
        return sum(seen) / max(seconds, BUCKET_S)

    def recent(self, now: float) -> tuple[float, float]:
        """Return the rates over half a window and a whole one, which outlasts a lull."""
        return self.rate(now, self.window // 2), self.rate(now, self.window)

    def felt_rps(self, now: float) -> float:
        """Return the demand of the last window as requests felt it, at least the mean rate; see `felt`."""
        return max(self.rate(now, self.window), felt(self.buckets[-(self.window + 1) :]))


def window_buckets(horizon_s: float) -> int:
    """Return over how many buckets a rate is read where a replica starts in `horizon_s` seconds.

    As long as a start takes, between ten seconds and a minute: what is over before a replica is there needs
    none, and what replicas are there for in time need not be smoothed away.
    """
    return min(max(math.ceil(horizon_s / BUCKET_S), _SHORTEST_WINDOW), MINUTE)


def rise_s(horizon_s: float) -> float:
    """Return the seconds of traffic in which a rise within `horizon_s` can first be seen."""
    window = window_buckets(horizon_s)
    return (window + _ahead(horizon_s, window)) * BUCKET_S


def _ahead(horizon_s: float, window: int) -> int:
    """Return the buckets from the middle of the window that a decision reads until its replicas are ready.

    A rise within less than a window counts as one over a window.
    """
    return int(min(max(horizon_s, window * BUCKET_S), LONGEST_HORIZON_S) / BUCKET_S) + window // 2


def felt(counts: Sequence[float]) -> float:
    """Return the requests per second as the requests felt it: the mean over requests of their bucket's rate.

    Requests in clumps wait for each other's prefill more often than their mean rate says. The mean over
    requests of the rate around them is E[rate^2] / E[rate]; c (c - 1) instead of c^2 leaves out each request
    itself, so that Poisson arrivals feel their mean rate and no more.
    """
    total = sum(counts)
    pairs = sum([count * (count - 1.0) for count in counts if count > 1.0])
    return pairs / total / BUCKET_S if total > 0 else 0.0


def _level(counts: Sequence[float]) -> float:
    """Return the demand in the buckets of one window."""
    return max(sum(counts) / (len(counts) * BUCKET_S), felt(counts))


def _remember(peaks: Peaks, counts: Sequence[float], closed: int, horizon_s: float, memory_s: float) -> Peaks:
    """Return the memory with the last `closed` of `counts`, buckets that have just been closed.

    The demand of a bucket is that of the half windows before and after it, so that a burst counts by its own
    requests and not by those of the windows next to it; it is known half a window later. Time without
    requests fades nothing: after a night the policy must still know the day.
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
        # Both windows of a rise must have been observed entirely; a part of one would look like a lull.
        first = end - window - ahead
        rise = level - _level(counts[first : end - ahead]) if first >= 0 else 0.0
        peaks = peaks.note(level, rise, weight, sum(around), fade, window)
    return peaks


def _bin(value: float) -> int:
    return round(math.log(value) * _PER_LOG) if value > 0 else _ZERO


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
