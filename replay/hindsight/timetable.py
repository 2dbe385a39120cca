"""When to start and stop replicas for a number that is ready in each slot, and the GPU-seconds of that."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from replay.sample import Sample
from traces.trace import Ints

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


@dataclass(frozen=True, slots=True)
class Timetable:
    """Replicas that are ready in each slot. One that is asked for is ready one cold start later."""

    slot_s: float
    cold_start_s: float
    ready: Ints

    @property
    def asked(self) -> Ints:
        """Replicas asked for in each slot: the most that are to be ready from it on to a cold start later.

        None goes while another is on its way, because `filled` leaves no gap shorter than a cold start.
        """
        return ahead(self.ready, math.ceil(self.cold_start_s / self.slot_s))

    @property
    def steps(self) -> list[tuple[float, int]]:
        """(seconds, replicas asked for from then on); at the end of the last slot, one."""
        asked = self.asked
        lead_s = math.ceil(self.cold_start_s / self.slot_s) * self.slot_s - self.cold_start_s
        found = {0.0: int(asked[0])}
        for slot in (np.flatnonzero(np.diff(asked)) + 1).tolist():
            # Those that go do so at the start of a slot; a start is asked for when it must be.
            late_s = lead_s if asked[slot] > asked[slot - 1] else 0.0
            found[float(math.floor(slot * self.slot_s + late_s))] = int(asked[slot])
        found[math.ceil(len(asked) * self.slot_s)] = 1
        return sorted(found.items())

    def prepaid(self, warm: int) -> tuple[int, float]:
        """Starts from before time 0, of the replicas asked for in the first slot beyond `warm`: how many, and
        their seconds that fall before time 0.
        """
        seconds, count = 0.0, int(self.asked[0])
        for replica in range(warm + 1, count + 1):
            first = int(np.argmax(self.ready >= replica))
            seconds += max(self.cold_start_s - first * self.slot_s, 0.0)
        return max(count - warm, 0), seconds


def ahead(values: Ints, slots: int) -> Ints:
    """The most of each slot and the `slots` after it."""
    padded = np.concatenate([values, np.zeros(slots, dtype=values.dtype)])
    return np.asarray(sliding_window_view(padded, slots + 1).max(axis=1))


def filled(replicas: Ints, slots: int) -> Ints:
    """`replicas` with every valley of fewer than `slots` slots filled: for each replica, whether it is kept
    through a gap goes by the gap's length alone. In morphology, the closing by a flat element.
    """
    slots = max(slots, 1)
    padded = np.pad(replicas, slots - 1, mode="edge")
    most = sliding_window_view(padded, slots).max(axis=1)
    return np.asarray(sliding_window_view(most, slots).min(axis=1))


def seconds(ready: Ints, slot_s: float, start_s: float) -> float:
    """The replica-seconds of `ready`, with `start_s` seconds per start; the first slot has no starts."""
    return float(ready.sum()) * slot_s + start_s * float(np.maximum(np.diff(ready), 0).sum())
