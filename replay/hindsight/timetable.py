"""The times to start and stop replicas for a given number in each slot, and their GPU-seconds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from replay.policies import Sample
from traces.trace import Ints

_EPS_S = 1e-6


class Schedule:
    """Asks for the replicas of a timetable, without regard to the traffic.

    Args:
        steps: At least one (seconds since the start, replicas from then on), times rising.
        name: For reports.
    """

    interval_s = 1.0

    def __init__(self, steps: Sequence[tuple[float, int]], name: str) -> None:
        self._steps = tuple(steps)
        self._next = 1
        self.name = name

    def decide(self, sample: Sample) -> int:
        """The replicas of the entry in force; times never fall."""
        while self._next < len(self._steps) and self._steps[self._next][0] <= sample.at + _EPS_S:
            self._next += 1
        return self._steps[self._next - 1][1]


@dataclass(frozen=True, slots=True)
class Timetable:
    """Replicas that are ready in each slot. A replica is ready one cold start after it is asked for."""

    slot_s: float
    cold_start_s: float
    ready: Ints

    @property
    def asked(self) -> Ints:
        """Replicas asked for in each slot: the most that are ready between this slot and a cold start later.

        No replica stops while another starts, because `fill_gaps` leaves no gap shorter than a cold start.
        """
        return look_ahead(self.ready, math.ceil(self.cold_start_s / self.slot_s))

    @property
    def steps(self) -> list[tuple[float, int]]:
        """(seconds, replicas asked for from then on); at the end of the last slot, one."""
        asked = self.asked
        lead_s = math.ceil(self.cold_start_s / self.slot_s) * self.slot_s - self.cold_start_s
        found = {0.0: int(asked[0])}
        for slot in (np.flatnonzero(np.diff(asked)) + 1).tolist():
            # Replicas stop at the start of a slot. A start is asked for as late as possible.
            late_s = lead_s if asked[slot] > asked[slot - 1] else 0.0
            found[float(math.floor(slot * self.slot_s + late_s))] = int(asked[slot])
        found[math.ceil(len(asked) * self.slot_s)] = 1
        return sorted(found.items())

    def prepaid(self, warm: int) -> tuple[int, float]:
        """Starts before time 0: the number of replicas beyond `warm` in the first slot, and the seconds of
        their starts that fall before time 0.
        """
        seconds, count = 0.0, int(self.asked[0])
        for replica in range(warm + 1, count + 1):
            first = int(np.argmax(self.ready >= replica))
            seconds += max(self.cold_start_s - first * self.slot_s, 0.0)
        return max(count - warm, 0), seconds


def look_ahead(values: Ints, slots: int) -> Ints:
    """The most of each slot and the `slots` after it."""
    padded = np.concatenate([values, np.zeros(slots, dtype=values.dtype)])
    return np.asarray(sliding_window_view(padded, slots + 1).max(axis=1))


def fill_gaps(replicas: Ints, slots: int) -> Ints:
    """`replicas` with every valley of fewer than `slots` slots filled (morphology: a flat closing).

    A replica is kept through a gap if the gap is short enough, independent of the other replicas.
    """
    slots = max(slots, 1)
    padded = np.pad(replicas, slots - 1, mode="edge")
    most = sliding_window_view(padded, slots).max(axis=1)
    return np.asarray(sliding_window_view(most, slots).min(axis=1))


def seconds(ready: Ints, slot_s: float, start_s: float) -> float:
    """The replica-seconds of `ready`, with `start_s` seconds per start; the first slot has no starts."""
    return float(ready.sum()) * slot_s + start_s * float(np.maximum(np.diff(ready), 0).sum())
