"""How much work arrives: request and prompt-token rates, and what recent peaks have needed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate

BUCKET_S = 5.0
HACK={}
_SHORT_BUCKETS = 6
_LONG_BUCKETS = 12
MAX_BUCKETS = 720
"""An hour, the longest forecast window."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Arrivals a second."""

    requests: float = 0.0
    tokens: float = 0.0

    @property
    def mean_tokens(self) -> float:
        """Prompt tokens a request; 0 without requests."""
        return self.tokens / self.requests if self.requests > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Demand:
    """Arrivals in buckets of five seconds, oldest first, the last one still filling."""

    buckets: tuple[tuple[float, float], ...] = ()
    """(requests, prompt tokens) each."""
    start: float | None = None
    """When the last bucket began."""
    until: float = 0.0
    """Up to when arrivals have been counted."""

    def add(self, now: float, requests: float, tokens: float) -> Demand:
        """The history with arrivals since the last call; time that has passed closes buckets."""
        if self.start is None or now < self.until:
            # Nothing yet, or a clock set back: what came before cannot be placed in time.
            return Demand(((requests, tokens),), now, now)
        passed = max(0, int((now - self.start) // BUCKET_S))
        last = self.buckets[-1]
        if passed == 0:
            filled = (last[0] + requests, last[1] + tokens)
            return Demand((*self.buckets[:-1], filled), self.start, now)
        # Counted over a stretch that crosses buckets, so spread over it evenly.
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
        return Demand(buckets[-MAX_BUCKETS:], start, now)

    def rate(self, now: float, buckets: int) -> Rate:
        """Mean over the last `buckets` whole buckets and the one filling."""
        if self.start is None:
            return Rate()
        seen = self.buckets[-(buckets + 1) :]
        seconds = (len(seen) - 1) * BUCKET_S + max(now - self.start, 0.0)
        # Sooner than a bucket, one request would look like a torrent.
        seconds = max(seconds, BUCKET_S)
        requests, tokens = map(sum, zip(*seen, strict=True))
        return Rate(requests / seconds, tokens / seconds)

    def recent(self, now: float) -> tuple[Rate, Rate]:
        """Rates over the last 30 and 60 s: the first follows a rise, the second outlasts a lull."""
        return self.rate(now, _SHORT_BUCKETS), self.rate(now, _LONG_BUCKETS)

    def recent_rps(self, now: float) -> float:
        """Requests a second, the larger of the two."""
        return max(rate.requests for rate in self.recent(now))

    def growth(self, q: float, horizon_s: float, window_s: float) -> tuple[float, float]:
        """(growth, most): by how much demand grows within `horizon_s`, and the most it has been.

        Both in requests a second, over one minute, of the last `window_s`, at quantile `q` of the
        requests: so large a share of those that came found no more demand than the growth above what a
        decision a horizon before had seen. Counted by requests and not by time because attainment is.
        """
        key=(self.start,q,horizon_s,window_s)
        if HACK.get('k')==key: return HACK['v']
        HACK['k']=key
        HACK['v']=v=self._growth(q,horizon_s,window_s)
        return v
    def _growth(self,q,horizon_s,window_s):
        counts = [bucket[0] for bucket in self.buckets[:-1]][-int(window_s / BUCKET_S) :]
        sums = list(accumulate(counts, initial=0.0))
        ahead = int(horizon_s / BUCKET_S) + _LONG_BUCKETS
        minutes = [
            (later - sooner) / (_LONG_BUCKETS * BUCKET_S)
            for sooner, later in zip(sums, sums[_LONG_BUCKETS:], strict=False)
        ]
        if not minutes:
            return 0.0, 0.0, 0.0
        halves = [
            (later - sooner) / (_SHORT_BUCKETS * BUCKET_S)
            for sooner, later in zip(sums[_SHORT_BUCKETS:], sums[_LONG_BUCKETS:], strict=False)
        ]
        seen = map(max, minutes, halves)
        steps = sorted((new - old, new) for new, old in zip(minutes[ahead:], seen, strict=False))
        most = _weighted_quantile(sorted((m, m) for m in minutes), q)
        return max(0.0, _weighted_quantile(steps, q)), most, sum(minutes) ** 2 / max(1e-9,sum(m * m for m in minutes)) / 12

    def quantile(self, q: float, window_s: float, elasticity: float, mean_tokens: float) -> Rate:
        """The `q`-quantile of ten-second demand over the last `window_s`, idle time included.

        Prompts longer than the mean weigh more: `elasticity` is the share by which capacity falls when
        prompts grow by their own length.
        """
        whole = self.buckets[:-1][-max(int(window_s / BUCKET_S), 2) :]
        if len(whole) < 2:
            return Rate()
        odd = len(whole) % 2
        # requests * (1 + elasticity * (tokens / requests / mean - 1)), and at least a tenth of them
        own, by_tokens = (1.0 - elasticity, elasticity / mean_tokens) if mean_tokens > 0 else (1.0, 0.0)
        slots = sorted(
            [
                max(0.1 * (a + b), own * (a + b) + by_tokens * (s + t))
                for (a, s), (b, t) in zip(whole[odd::2], whole[odd + 1 :: 2], strict=True)
            ]
        )
        rank = min(len(slots) - 1, max(0, math.ceil(q * len(slots)) - 1))
        requests = slots[rank] / (2 * BUCKET_S)
        return Rate(requests, requests * mean_tokens)


def _weighted_quantile(values: list[tuple[float, float]], q: float) -> float:
    """Of sorted (value, weight)s."""
    total = sum(weight for _, weight in values)
    below = 0.0
    for value, weight in values:
        below += weight
        if below >= q * total:
            return value
    return 0.0
