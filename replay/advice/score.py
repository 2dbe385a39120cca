"""The score of a configuration on part of a trace, over several seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from replay.result import Result


@dataclass(frozen=True, slots=True)
class Outcome:
    """One replay."""

    gpu_seconds: float
    attainment: float
    ttft_ok: float
    starts: float
    changes: float
    peak: float
    """Most replicas at a time."""
    infeasible: float
    """Share of requests that no number of replicas answers within the TTFT target."""
    late: float = 0.0
    """Requests of the lane `background` that were unfinished at their deadline. Their latency does not
    count."""

    @classmethod
    def of(cls, result: Result) -> Outcome:
        """The outcome of a replay's result."""
        late = 0.0 if result.background is None else float(result.background.late)
        return cls(**result.summary(), infeasible=result.infeasible, late=late)


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over seeds."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of at least one value."""
        return cls(min(values), median(values), max(values))


@dataclass(frozen=True, slots=True)
class Score:
    """Outcomes by seed. Configurations are compared on equal seeds."""

    outcomes: tuple[Outcome, ...]

    def spread(self, figure: str) -> Spread:
        """The spread of the figure with this name."""
        return Spread.of([float(getattr(outcome, figure)) for outcome in self.outcomes])

    @property
    def gpu_seconds(self) -> float:
        """The median over seeds."""
        return self.spread("gpu_seconds").median

    @property
    def attainment(self) -> float:
        """The least over seeds: a target that one seed in three misses is not met."""
        return self.spread("attainment").low

    @property
    def late(self) -> float:
        """The most over seeds."""
        return self.spread("late").high

    def meets(self, goal: float) -> bool:
        """Whether every seed attains `goal` and finishes the background work by its deadline."""
        return self.attainment >= goal and not self.late


def better(score: Score, than: Score, goal: float, gain: float = 0.0) -> bool:
    """Whether `score` is better than `than`.

    A configuration that meets the goal is better than one that misses it. If both meet it, the one that is
    cheaper by a share of more than `gain` is better. If both miss it, the one that attains more is better,
    then the one with less background work unfinished at its deadline, then the cheaper one. Attainment above
    the goal does not count.
    """
    if score.meets(goal) != than.meets(goal):
        return score.meets(goal)
    cheaper = score.gpu_seconds < than.gpu_seconds * (1.0 - gain)
    if score.meets(goal):
        return cheaper
    if min(score.attainment, than.attainment) >= goal:
        return score.late < than.late or (score.late == than.late and cheaper)
    more = score.attainment - than.attainment
    return more > ATTAINED_ALIKE or (more > -ATTAINED_ALIKE and cheaper)


ATTAINED_ALIKE = 0.001
"""Attainments that differ by less than this are the same. One minute of an hour is 1.7 %."""


def savings(new: Score, old: Score) -> Sequence[float]:
    """GPU-seconds saved, seed by seed."""
    return [
        before.gpu_seconds - after.gpu_seconds
        for after, before in zip(new.outcomes, old.outcomes, strict=True)
    ]


def within_noise(new: Score, old: Score) -> bool | None:
    """Whether the difference in GPU-seconds could be noise between seeds; None with one seed only.

    The difference is beyond noise if all seeds agree on its sign, and its median is at least its range.
    """
    saved = savings(new, old)
    if len(saved) < 2:
        return None
    low, high = min(saved), max(saved)
    return low <= 0.0 <= high or abs(median(saved)) < high - low
