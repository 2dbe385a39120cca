"""The traffic of cells that have their own, in place of recorded windows."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Protocol

from traces.synthetic import Lengths, poisson, square_wave, with_growing_prompts
from traces.trace import Trace


class Traffic(Protocol):
    """What a policy is replayed on: a recorded window, or made-up traffic."""

    @property
    def name(self) -> str:
        """For people."""
        ...

    @property
    def digest(self) -> str:
        """Equal digests and cuts are equal requests."""
        ...

    @property
    def cut_s(self) -> float | None:
        """Only its first so many seconds are replayed; None: all of it."""
        ...

    @property
    def requests(self) -> int:
        """How many, roughly where they are drawn."""
        ...

    @property
    def duration_s(self) -> float:
        """Seconds to the last arrival, roughly where they are drawn."""
        ...

    @property
    def smooth(self) -> bool:
        """Whether 99 % attainment is asked for on it."""
        ...

    def open(self) -> Trace:
        """Its requests."""
        ...


@dataclass(frozen=True, slots=True)
class Growth:
    """Prompts that grow to their full length."""

    factor: float
    from_s: float
    over_s: float


@dataclass(frozen=True, slots=True)
class MadeUp:
    """Poisson arrivals at (requests per second, seconds) of each stretch."""

    name: str
    stretches: Sequence[tuple[float, float]]
    smooth: bool
    growth: Growth | None = None
    lengths: Lengths = field(default_factory=Lengths)
    seed: int = 0
    cut_s: float | None = None

    @property
    def digest(self) -> str:
        """See `Traffic`."""
        inputs = {name: value for name, value in asdict(self).items() if name not in ("cut_s", "smooth")}
        return hashlib.sha256(repr(inputs).encode()).hexdigest()[:16]

    @property
    def requests(self) -> int:
        """See `Traffic`."""
        return round(sum(rate * for_s for rate, for_s in self._replayed()))

    @property
    def duration_s(self) -> float:
        """See `Traffic`."""
        return sum(for_s for _, for_s in self._replayed())

    def open(self) -> Trace:
        """See `Traffic`."""
        trace = poisson(self.name, self._replayed(), lengths=self.lengths, seed=self.seed)
        if self.growth is None:
            return trace
        return with_growing_prompts(trace, self.growth.factor, self.growth.from_s, self.growth.over_s)

    def _replayed(self) -> list[tuple[float, float]]:
        left_s = float("inf") if self.cut_s is None else self.cut_s
        replayed = []
        for rate, for_s in self.stretches:
            replayed.append((rate, min(for_s, left_s)))
            left_s -= for_s
            if left_s <= 0:
                break
        return replayed


CONSTANT = MadeUp("constant", ((12.0, 3600.0),), smooth=True)
SQUARE_WAVE = MadeUp("square-wave", tuple(square_wave(15.0, 35.0, 300.0, 3600.0)), smooth=True)
BUSY_THEN_QUIET = MadeUp("busy-then-quiet", (*SQUARE_WAVE.stretches, (1.0, 7200.0)), smooth=True)
"""What demand rose by in the busy hour is no reason to keep replicas in the quiet ones."""
STEP = MadeUp("step", ((6.0, 1800.0), (30.0, 1800.0)), smooth=False)
"""No policy that learns of the step when it comes attains 99 %: a cold start of 75 s at five times the rate
is 3.5 % of the requests. It is judged as bursty traffic is."""
GROWING_PROMPTS = MadeUp(
    "growing-prompts", ((12.0, 3600.0),), smooth=True, growth=Growth(8.0, from_s=1200.0, over_s=600.0)
)
"""Prompts an eighth as long for twenty minutes, which then grow to their lengths over ten."""
