"""Days and weeks of traffic, composed of a recorded hour or two."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from traces.chunks import joined, part, picked
from traces.scale import JITTER_S
from traces.trace import CHUNK_REQUESTS, Chunk, Floats, Trace, TraceError

DAY_S = 86_400.0
PIECE_S = 600.0
"""Of the recording, taken from a place drawn anew for every ten minutes of the day: the clumps and swings of
the recording stay, and its own trend over the hour does not come back every hour."""
HOURS = (0, 2, 4, 6, 8, 10, 11, 12, 13, 14, 16, 18, 20, 22, 24)
LEVELS = (0.35, 0.20, 0.15, 0.20, 0.55, 0.95, 1.00, 0.85, 0.85, 1.00, 0.95, 0.70, 0.60, 0.50, 0.35)
"""The rate at these hours, as a share of the midday peak, straight in between. The shape is ours: users who
work by day, in one time zone, make a quiet night, a morning ramp, a lull at lunch and two peaks."""
WEEKEND = 0.5
"""The level of the sixth and the seventh day, as a share of a weekday's."""
DAY_NOISE = 0.15
"""The standard deviation of the logarithm of a day's level: days differ by some 15 %."""


class DaysTrace:
    """A recording thinned, or multiplied, to the shape of days, which begin on a Monday at midnight.

    Args:
        source: The recording, at least `PIECE_S` long. Prefix blocks are left out.
        days: How many, at least 1.
        peak_rps: Requests per second at the peak of a weekday of usual level, on average.
        seed: Equal seeds give equal traces, and a longer one begins like a shorter one.

    Raises:
        TraceError: if the recording is too short, or an argument is out of bounds.
    """

    block_tokens = 0

    def __init__(self, source: Trace, days: int, peak_rps: float, seed: int = 0) -> None:
        found = joined(list(source.chunks()))
        self._recorded = Chunk(found.arrival_s, found.input_tokens, found.output_tokens)
        self._length_s = float(self._recorded.arrival_s[-1])
        if self._length_s < PIECE_S:
            raise TraceError(
                f"{source.name}: lasts {self._length_s:g} s, and must last {PIECE_S:g} s or more"
            )
        for name, value, least in (("days", days, 1), ("peak_rps", peak_rps, 1e-3)):
            if not value >= least:
                raise TraceError(f"{name} = {value:g}: must be at least {least:g}")
        self._days, self._peak_rps, self._seed = days, peak_rps, seed
        self._given = 0.0
        self.name = f"{days} days of {source.name}"

    def rate(self, at_s: Floats) -> Floats:
        """Return the mean requests per second at these times, seconds since the first midnight."""
        day = (at_s // DAY_S).astype(np.int64)
        noise = np.random.default_rng([self._seed, 0]).normal(0.0, DAY_NOISE, self._days)
        levels = np.exp(noise - DAY_NOISE**2 / 2)  # their mean is 1
        levels = np.where(np.arange(self._days) % 7 < 5, 1.0, WEEKEND) * levels
        shape = np.interp(at_s % DAY_S / 3600.0, HOURS, LEVELS)
        rates: Floats = self._peak_rps * shape * levels[day]
        return rates

    def chunks(self) -> Iterator[Chunk]:
        """See `Trace`."""
        draws = np.random.default_rng([self._seed, 1])
        for number in range(int(self._days * DAY_S / PIECE_S)):
            piece = self._piece(number * PIECE_S, draws)
            self._given = (number + 1) * PIECE_S / (self._days * DAY_S)
            for start in range(0, len(piece), CHUNK_REQUESTS):
                yield part(piece, start, min(start + CHUNK_REQUESTS, len(piece)))

    def progress(self) -> float:
        """See `Trace`."""
        return self._given

    def _piece(self, start_s: float, draws: np.random.Generator) -> Chunk:
        begin_s = draws.uniform(0.0, self._length_s - PIECE_S)
        first, end = np.searchsorted(self._recorded.arrival_s, (begin_s, begin_s + PIECE_S))
        recorded = part(self._recorded, int(first), int(end))
        at_s = recorded.arrival_s - begin_s
        times = self.rate(start_s + at_s) * self._length_s / len(self._recorded)
        copies = (times + draws.random(len(at_s))).astype(np.int64)
        index = np.repeat(np.arange(len(at_s)), copies)
        moved = np.diff(index, prepend=-1) == 0  # every copy but the first
        at_s = at_s[index] + np.where(moved, draws.uniform(-JITTER_S, JITTER_S, len(index)), 0.0)
        at_s = np.clip(at_s, 0.0, np.nextafter(PIECE_S, 0.0))
        order = np.argsort(at_s, kind="stable")
        return replace(picked(recorded, index[order]), arrival_s=start_s + at_s[order])
