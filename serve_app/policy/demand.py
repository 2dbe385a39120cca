"""How many requests arrive: rates over the last minute, and the memory of what demand has reached."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from serve_app.policy.peaks import Peaks

BUCKET_S = 5.0
_SHORT_BUCKETS = 6
_LONG_BUCKETS = 12
LONGEST_HORIZON_S = 900.0
MAX_BUCKETS = int(LONGEST_HORIZON_S / BUCKET_S) + 2 * _LONG_BUCKETS
"""As many as a rise over the longest cold start needs."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Arrivals per second."""

    requests: float = 0.0
    tokens: float = 0.0

    @property
    def mean_tokens(self) -> float:
        """Prompt tokens per request; 0 without requests."""
        return self.tokens / self.requests if self.requests > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Demand:
    """Arrivals in buckets of five seconds, oldest first, the last one still filling."""

    buckets: tuple[tuple[float, float], ...] = ()
    """(requests, prompt tokens) of each bucket."""
    start: float | None = None
    """When the last bucket began."""
    until: float = 0.0
    """The time until which arrivals have been counted."""
    peaks: Peaks = field(default_factory=Peaks)

    def add(
        self,
        now: float,
        requests: float,
        tokens: float,
        horizon_s: float = 60.0,
        memory_s: float = 7200.0,
    ) -> Demand:
        """Return the history with the arrivals since the last call; time that has passed closes buckets.

        Args:
            now: Unix time in seconds.
            requests: Arrivals since the last call.
            tokens: The prompt tokens of those requests.
            horizon_s: Seconds over which a rise is measured: a cold start.
            memory_s: Seconds of traffic in which the memory of peaks fades to 1/e.
        """
        if self.start is None or now < self.until:
            # The first call, or a clock set back: the time of earlier arrivals is unknown.
            return Demand(((requests, tokens),), now, now, self.peaks)
        passed = max(0, int((now - self.start) // BUCKET_S))
        last = self.buckets[-1]
        if passed == 0:
            filled = (last[0] + requests, last[1] + tokens)
            return replace(self, buckets=(*self.buckets[:-1], filled), until=now)
        # The arrivals belong to several buckets, so they are spread evenly over them.
        start = self.start + passed * BUCKET_S
        per_s = 1.0 / (now - self.until)
        end = self.start + BUCKET_S
        head = max(0.0, end - self.until) * per_s
        tail = (now - start) * per_s
        middle = min(passed - 1, MAX_BUCKETS)
        each = BUCKET_S * per_s
        buckets = (
            *self.buckets[:-1],
            (last[0] + requests * head, last[1] + tokens * head),
            *([(requests * each, tokens * each)] * middle),
            (requests * tail, tokens * tail),
        )
        peaks = _remember(self.peaks, buckets, 1 + middle, horizon_s, memory_s)
        return Demand(buckets[-MAX_BUCKETS:], start, now, peaks)

    def rate(self, now: float, buckets: int) -> Rate:
        """Return the mean over the last `buckets` whole buckets and the one that is filling."""
        if self.start is None:
            return Rate()
        seen = self.buckets[-(buckets + 1) :]
        seconds = (len(seen) - 1) * BUCKET_S + max(now - self.start, 0.0)
        # Over less than a bucket one request would look like a burst.
        seconds = max(seconds, BUCKET_S)
        requests, tokens = map(sum, zip(*seen, strict=True))
        return Rate(requests / seconds, tokens / seconds)

    def recent(self, now: float) -> tuple[Rate, Rate]:
        """Return the rates over 30 and 60 s: the first follows a rise, the second outlasts a lull."""
        return self.rate(now, _SHORT_BUCKETS), self.rate(now, _LONG_BUCKETS)

    def recent_rps(self, now: float) -> float:
        """Return the larger of the two in requests per second."""
        return max(rate.requests for rate in self.recent(now))

    def felt_rps(self, now: float) -> float:
        """Return the demand of the last minute as requests felt it, at least the mean rate; see `felt`."""
        seen = [bucket[0] for bucket in self.buckets[-(_LONG_BUCKETS + 1) :]]
        return max(self.rate(now, _LONG_BUCKETS).requests, felt(seen))


def felt(counts: list[float]) -> float:
    """Return the requests per second as the requests felt it: the mean over requests of their bucket's rate.

    Requests in clumps wait for each other's prefill more often than their mean rate says. The mean over
    requests of the rate around them is E[rate^2] / E[rate]; c (c - 1) instead of c^2 leaves out each request
    itself, so that Poisson arrivals feel their mean rate and no more.
    """
    total = sum(counts)
    pairs = sum([count * (count - 1.0) for count in counts if count > 1.0])
    return pairs / total / BUCKET_S if total > 0 else 0.0


def _level(counts: list[float]) -> float:
    """Return the demand in the buckets of one minute."""
    return max(sum(counts) / (_LONG_BUCKETS * BUCKET_S), felt(counts))


def _remember(
    peaks: Peaks, buckets: tuple[tuple[float, float], ...], closed: int, horizon_s: float, memory_s: float
) -> Peaks:
    """Return the memory with the buckets that have just been closed.

    The demand of a bucket is that of the half minutes before and after it, so that a burst counts by its own
    requests and not by those of the minutes next to it; it is known half a minute later. Time without
    requests fades nothing: after a night the policy must still know the day.
    """
    counts = [bucket[0] for bucket in buckets[:-1]]
    half = _LONG_BUCKETS // 2
    # From the middle of the minute that a decision reads until its replicas are ready. A rise within less
    # than a minute counts as one over a minute.
    ahead = int(min(max(horizon_s, _LONG_BUCKETS * BUCKET_S), LONGEST_HORIZON_S) / BUCKET_S) + half
    fade = math.exp(-BUCKET_S / memory_s)
    for end in range(max(_LONG_BUCKETS, len(counts) - closed + 1), len(counts) + 1):
        weight = counts[end - half]
        if weight <= 0:
            continue
        minute = counts[end - _LONG_BUCKETS : end]
        level = _level(minute)
        # Both minutes of a rise must have been observed entirely; a part of one would look like a lull.
        first = end - _LONG_BUCKETS - ahead
        rise = level - _level(counts[first : end - ahead]) if first >= 0 else 0.0
        peaks = peaks.note(level, rise, weight, sum(minute), _LONG_BUCKETS, fade)
    return peaks
