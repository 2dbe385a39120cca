"""Demand by the time of day: what yesterday and the same day a week ago say of the minutes to come. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from serve_app.policy.inputs import Expected

BUCKET_S = 600.0
"""Ten minutes have several of the minutes' peaks, and are short beside a morning that rises for hours."""
_DAY = int(86_400 / BUCKET_S)
_WEEK = 7 * _DAY
_KEPT = 8 * _DAY
_HOUR = 6
"""Buckets over which both days are read: six know a level to 6 % where one of them knows it to 15 %."""


@dataclass(frozen=True, slots=True)
class Merit:
    """How far a forecast was off in past buckets, beside two that know no time of day.

    Sums of absolute errors in requests per second, so that busy buckets count more. A day fades to 1/e.
    """

    error: float = 0.0
    as_now: float = 0.0
    """Of persistence: as much as in the bucket before."""
    as_lately: float = 0.0
    """Of the mean of the hour before: what a mean alone saves is no merit of the time of day."""

    def add(self, error: float, as_now: float, as_lately: float) -> Self:
        """Return the sums with one bucket more."""
        keep = 1.0 - 1.0 / _DAY
        sums = (self.error, error), (self.as_now, as_now), (self.as_lately, as_lately)
        return type(self)(*[past * keep + new for past, new in sums])

    @property
    def gain(self) -> float:
        """The share of the better one's error that the forecast has saved; negative where it did harm."""
        least = min(self.as_now, self.as_lately)
        return 1.0 - self.error / least if least > 0 else 0.0


@dataclass(frozen=True, slots=True)
class DailyDemand:
    """The highest demand of each ten minutes of the last eight days, and what it was worth as a forecast.

    The time of day is that of UTC: when clocks change, it is an hour off for a day, and `Merit` notices.
    """

    closed: tuple[float | None, ...] = ()
    """Requests per second, oldest first; None where nothing was observed."""
    filling: float = 0.0
    """The same of the bucket that is not over yet."""
    start: float | None = None
    """When that began, in Unix time."""
    yesterday: Merit = field(default_factory=Merit)
    week: Merit = field(default_factory=Merit)

    def note(self, now: float, rps: float) -> Self:
        """Return the memory with a demand of `rps` requests per second at Unix time `now`."""
        start = now // BUCKET_S * BUCKET_S
        passed = 0 if self.start is None else round((start - self.start) / BUCKET_S)
        if self.start is None or passed < 0:  # the first, or a clock set back
            return replace(self, closed=self.closed[:passed] if passed else (), filling=rps, start=start)
        if passed == 0:
            return self if rps <= self.filling else replace(self, filling=rps)
        return replace(
            self,
            closed=(*self.closed, round(self.filling, 3), *[None] * min(passed - 1, _KEPT))[-_KEPT:],
            filling=rps,
            start=start,
            yesterday=self._judged(self.yesterday, _DAY),
            week=self._judged(self.week, _WEEK),
        )

    def expected(self, now: float, horizon_s: float) -> Expected | None:
        """Return what to expect until `horizon_s` seconds after `now`; None where no day is known to help."""
        days = ((self.yesterday, _DAY, "yesterday"), (self.week, _WEEK, "a week ago"))
        merit, back, source = max(days, key=lambda day: day[0].gain)
        if merit.gain <= 0 or self.start is None or not 0 <= now - self.start < 2 * BUCKET_S:
            return None
        last = min(int((now - self.start + horizon_s) // BUCKET_S), _DAY - _HOUR)
        told = [self._forecast(back, bucket) for bucket in range(last + 1)]
        known = [rps for rps in told if rps is not None]
        return Expected(max(known), merit.gain, source) if known else None

    def _judged(self, merit: Merit, back: int) -> Merit:
        """Return `merit` after the bucket that was filling; what was not told is not judged."""
        forecast, seen = self._forecast(back, 0), self.filling
        before, lately = _mean(self.closed[-1:]), _mean(self.closed[-_HOUR:])
        if forecast is None or before is None or lately is None:
            return merit
        return merit.add(*[abs(rps - seen) for rps in (forecast, before, lately)])

    def _forecast(self, back: int, ahead: int) -> float | None:
        """Return the demand of the bucket `ahead` of the filling one: the last hour's mean, changed as then.

        That is from the mean of an hour to the mean around a bucket, both `back` buckets earlier.
        """
        first, half = len(self.closed) - back, _HOUR // 2
        if first < _HOUR:
            return None
        around = self.closed[first + ahead - half : first + ahead + half + 1]
        before, then, lately = map(_mean, (self.closed[first - _HOUR : first], around, self.closed[-_HOUR:]))
        return lately * then / before if lately is not None and then is not None and before else None


def _mean(buckets: Sequence[float | None]) -> float | None:
    known = [rps for rps in buckets if rps is not None]
    return sum(known) / len(known) if known else None
