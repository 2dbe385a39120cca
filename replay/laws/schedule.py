"""Replicas by a timetable, which the oracle works out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from replay.sample import Sample

_EPS_S = 1e-6


class Schedule:
    """Asks for the replicas of a timetable, whatever the traffic.

    Args:
        steps: (seconds since the start, replicas from then on), times rising. Before the first of them, the
            first.
        name: For reports.
        interval_s: Seconds between two looks at the timetable.

    Raises:
        ValueError: for no steps, times that do not rise or a negative number.
    """

    def __init__(
        self, steps: Sequence[tuple[float, int]], *, name: str = "schedule", interval_s: float = 1.0
    ) -> None:
        if not steps:
            raise ValueError("schedule: at least one (time, replicas) is needed")
        for (before, _), (after, _) in pairwise(steps):
            if not after > before:
                raise ValueError(f"schedule: times must rise, and {after:g} s follows {before:g} s")
        for at, replicas in steps:
            if replicas < 0:
                raise ValueError(f"schedule: replicas at {at:g} s = {replicas}: must be at least 0")
        self._steps = tuple(steps)
        self._next = 1
        self.name = name
        self.interval_s = interval_s

    def decide(self, sample: Sample) -> int:
        """The replicas of the entry in force; times never fall."""
        while self._next < len(self._steps) and self._steps[self._next][0] <= sample.at + _EPS_S:
            self._next += 1
        return self._steps[self._next - 1][1]
