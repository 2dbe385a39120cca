"""The fleet over time, thinned to a bounded number of points as the replay goes on."""

from __future__ import annotations

import numpy as np

from replay.fleet.fleet import Fleet
from replay.result import Timeline

_MOST_POINTS = 2_000
_FIRST_INTERVAL_S = 2.0


class Series:
    """Records the fleet every `interval_s`; when there are too many points, every other one is dropped."""

    def __init__(self) -> None:
        self.interval_s = _FIRST_INTERVAL_S
        self.next_at = 0.0
        self._rows: list[tuple[float, ...]] = []

    def note(self, fleet: Fleet, wanted: int | None) -> None:
        """Record the fleet as it is now."""
        totals = fleet.memory.totals[0]
        held = float(totals["held"])
        waiting = float(fleet.memory.replicas["waiting"][: int(totals["used"])].sum())
        self._rows.append(
            (
                fleet.now,
                float(totals["arrivals"]),
                float(fleet.target if wanted is None else wanted),
                float(fleet.target),
                float(fleet.ready),
                float(len(fleet.starting) + len(fleet.pending)),
                float(fleet.draining),
                held + waiting,
                held,
            )
        )
        if len(self._rows) > _MOST_POINTS:
            self._rows = self._rows[::2]
            self.interval_s *= 2
        self.next_at = self._rows[-1][0] + self.interval_s

    def timeline(self) -> Timeline:
        """The whole timeline."""
        rows = np.array(self._rows, dtype=np.float64).reshape(len(self._rows), 9)
        at, arrivals = rows[:, 0], rows[:, 1]
        between = np.diff(at, prepend=at[:1] - self.interval_s)
        rate = np.diff(arrivals, prepend=0.0) / np.maximum(between, 1e-9)
        return Timeline(self.interval_s, at, rate, *(rows[:, column] for column in range(2, 9)))
